"""Detects triggers that repeat another one within the dedupe window."""

from collections import OrderedDict

from manifold.contracts.seq import unix_ms_of


class DedupeWindow:
    """Digests of the triggers in the last `window_ms`, by the time in their seqs. Offer them in seq order."""

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        self._first: OrderedDict[str, int] = OrderedDict()

    def first(self, digest: str, seq: int) -> int:
        """The seq of the first trigger with this digest in the window before `seq`: `seq` itself, or the one it duplicates."""
        if not self.window_ms:  # without a window, two in the same millisecond are distinct
            return seq
        self._forget_before(seq)
        known = self._first.get(digest)
        if known is not None and not self._is_over(known, seq):
            return known
        self._first.pop(digest, None)
        self._first[digest] = seq
        return seq

    def correct(self, digest: str, seq: int, first: int) -> None:
        """Note that another recorder was first: duplicates of `seq` are duplicates of `first`."""
        if self._first.get(digest) == seq:
            self._first[digest] = first

    def forget(self, digest: str, seq: int) -> None:
        """Note that trigger `seq` was refused after all: the same trigger again is not a duplicate."""
        if self._first.get(digest) == seq:
            del self._first[digest]

    def remaining_ms(self, seq: int, now_ms: int) -> int:
        """How much of trigger `seq`'s window is left; 0 or less if it is over."""
        return self.window_ms - (now_ms - unix_ms_of(seq))

    def _is_over(self, known: int, seq: int) -> bool:
        return unix_ms_of(seq) - unix_ms_of(known) > self.window_ms

    def _forget_before(self, seq: int) -> None:
        while self._first:
            digest, oldest = next(iter(self._first.items()))
            if not self._is_over(oldest, seq):
                return
            del self._first[digest]
