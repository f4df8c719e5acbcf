"""The memory of Arrow, counted."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

_POOLS: list[pa.MemoryPool] = []  # kept for good: a buffer that outlives its pool crashes the process


@contextmanager
def counted_arrow_memory() -> Iterator[pa.MemoryPool]:
    """Yield the pool that Arrow allocates from during the block."""
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    _POOLS.append(pool)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(usual)
