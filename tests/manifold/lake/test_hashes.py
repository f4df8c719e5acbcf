"""Duplicate detection by hashes within one process."""

import tracemalloc

import numpy as np
import pyarrow as pa

from manifold.lake.hashes import HASH_BATCH_SIZE, find_duplicates

MAX_BYTES = 10 * HASH_BATCH_SIZE  # of NumPy; Arrow's memory is not measured here


def hashes(*parts: list[int]) -> pa.ChunkedArray:
    return pa.chunked_array([np.array(part, np.int64) for part in parts], pa.int64())


def test_duplicate_hashes_are_found_once_at_any_position() -> None:
    assert find_duplicates(hashes([5, -1, 3], [3, -1, 7, 3])).tolist() == [-1, 3]
    assert find_duplicates(hashes([1], [2])).tolist() == []
    assert find_duplicates(hashes()).tolist() == []


def test_a_comparison_batch_fits_into_driver_memory() -> None:
    found = pa.chunked_array([np.arange(HASH_BATCH_SIZE), np.arange(2)])
    tracemalloc.start()
    try:
        twice = find_duplicates(found)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert twice.tolist() == [0, 1]
    assert peak <= MAX_BYTES
