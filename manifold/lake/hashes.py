"""Finds the hashes of keys that occur more than once in a run's rows, in the memory of one process, without a Spark shuffle."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# The maximum number of hashes that one process compares; with more rows, Spark compares them, with two to four times the CPU
# time. A hash takes eight bytes as received, and eight more in the array that is sorted: 256 MiB for all.
HASH_BATCH_SIZE = 1 << 24

Hashes = npt.NDArray[np.int64]


def find_duplicates(hashes: pa.ChunkedArray) -> Hashes:
    """The hashes (int64) that occur more than once, sorted and without duplicates."""
    ordered = _combine(hashes)
    ordered.sort()
    is_same_as_previous = ordered[1:] == ordered[:-1]
    return np.unique(ordered[1:][is_same_as_previous])


def _combine(hashes: pa.ChunkedArray) -> Hashes:
    """Copy the chunks into one array."""
    combined = np.empty(len(hashes), np.int64)
    start = 0
    for chunk in hashes.chunks:
        end = start + len(chunk)
        combined[start:end] = chunk
        start = end
    return combined
