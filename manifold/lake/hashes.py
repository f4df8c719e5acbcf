"""Finds hashes of keys that occur several times in a run's rows, in the memory of one process, without a shuffle."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# Hashes that are compared here; for more rows Spark does it, at two to four times the CPU. Each takes eight bytes as it arrives
# and eight more when all are sorted: 256 MB.
HASH_BATCH_SIZE = 1 << 24

Hashes = npt.NDArray[np.int64]


def find_duplicates(hashes: pa.ChunkedArray) -> Hashes:
    """The hashes (int64) that occur several times, each once, sorted."""
    found = _in_one(hashes)
    found.sort()
    return np.unique(found[1:][found[1:] == found[:-1]])


def _in_one(hashes: pa.ChunkedArray) -> Hashes:
    found, filled = np.empty(len(hashes), np.int64), 0
    for chunk in hashes.chunks:
        found[filled : filled + len(chunk)] = chunk
        filled += len(chunk)
    return found
