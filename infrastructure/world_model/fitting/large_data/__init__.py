"""Training data that does not fit in memory: what batches need is encoded into memory-mapped files.

`prepare_large_data` reads the transitions twice in bounded memory and keeps the encoded rows for
further attempts; `MappedBatches` draws batches from them.
"""

from infrastructure.world_model.fitting.large_data.cache import (
    IN_MEMORY_ROWS,
    LargeDataSource,
    prepare_large_data,
)

__all__ = ["IN_MEMORY_ROWS", "LargeDataSource", "prepare_large_data"]
