"""Hashes that one process compares."""

import tracemalloc

import numpy as np
import pyarrow as pa

from manifold.lake.hashes import HASH_BATCH_SIZE, find_duplicates

MAX_BYTES = 10 * HASH_BATCH_SIZE  # of NumPy; what Arrow holds at the same time is not seen here


def hashes(*parts: list[int]) -> pa.ChunkedArray:
    return pa.chunked_array([np.array(part, np.int64) for part in parts], pa.int64())


def test_hashes_that_stand_twice_are_found_once_wherever_they_stand() -> None:
    assert find_duplicates(hashes([5, -1, 3], [3, -1, 7, 3])).tolist() == [-1, 3]
    assert find_duplicates(hashes([1], [2])).tolist() == []
    assert find_duplicates(hashes()).tolist() == []


def test_as_many_as_are_compared_at_once_leave_the_driver_its_memory() -> None:
    found = pa.chunked_array([np.arange(HASH_BATCH_SIZE), np.arange(2)])
    tracemalloc.start()
    try:
        twice = find_duplicates(found)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert twice.tolist() == [0, 1]
    assert peak <= MAX_BYTES
