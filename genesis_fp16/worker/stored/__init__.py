"""The job's half of an attempt's mirror: a scratch folder here, objects in a store that is shared.

``python -P -m genesis_fp16.worker.stored URL JOB``; see `genesis_fp16.domain.stored_attempt`.
"""
