"""The job's half of an attempt's mirror: a scratch folder here, objects in a bucket that is shared.

``python -P -m genesis_fp16.worker.bucket URL JOB``; see `genesis_fp16.domain.bucket_attempt`.
"""
