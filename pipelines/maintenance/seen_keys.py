"""Remembers millions of keys that a SCAN of Redis has returned, since it may return a key twice."""

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]


class SeenKeys:
    """Keys seen so far, as 64-bit hashes: eight bytes each, in a few sorted runs, each longer than the next.

    If two keys ever had one hash, the second would not be read; its bucket would differ, and be compared entry by entry.
    """

    def __init__(self) -> None:
        self._runs: list[Hashes] = []

    def note(self, hashes: Hashes) -> Flags:
        """Flag the hashes that were not seen before, and remember all of them."""
        is_new = np.zeros(len(hashes), np.bool_)
        is_new[np.unique(hashes, return_index=True)[1]] = True
        for run in self._runs:
            is_new &= run[np.minimum(np.searchsorted(run, hashes), len(run) - 1)] != hashes
        new = np.sort(hashes[is_new])
        while self._runs and len(self._runs[-1]) <= len(new):
            new = np.sort(np.concatenate([self._runs.pop(), new]))
        if len(new):
            self._runs.append(new)
        return is_new
