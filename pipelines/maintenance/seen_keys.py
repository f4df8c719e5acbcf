"""Remembers millions of keys that a SCAN of Redis has returned, because SCAN may return a key twice."""

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]


class SeenKeys:
    """The keys seen so far, as 64-bit hashes of eight bytes each.

    The hashes are in a few sorted arrays, each longer than the next. New hashes are merged with arrays that are not longer.

    If two keys had the same hash, the second key would not be read. Then the digest of its bucket would differ, and the bucket
    would be compared entry by entry, so that no difference is missed.
    """

    def __init__(self) -> None:
        self._sorted_arrays: list[Hashes] = []

    def add(self, hashes: Hashes) -> Flags:
        """Add the hashes; return, for each, whether it is new. Of equal hashes, only the first is new."""
        is_new = np.zeros(len(hashes), np.bool_)
        _, first_indices = np.unique(hashes, return_index=True)
        is_new[first_indices] = True
        for seen in self._sorted_arrays:
            # The index at which each hash is, if `seen` has it; searchsorted returns len(seen) for hashes above the last.
            indices = np.minimum(np.searchsorted(seen, hashes), len(seen) - 1)
            is_new &= seen[indices] != hashes
        new = np.sort(hashes[is_new])
        # Merge arrays that are not longer than the new one, so that each stays longer than the next.
        while self._sorted_arrays and len(self._sorted_arrays[-1]) <= len(new):
            new = np.sort(np.concatenate([self._sorted_arrays.pop(), new]))
        if len(new):
            self._sorted_arrays.append(new)
        return is_new
