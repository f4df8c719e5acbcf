"""Finds triggers that repeat another one within the dedupe window."""

from collections import OrderedDict

from manifold.contracts.seq import unix_ms_of


class DedupeWindow:
    """Digests of the triggers of the last `window_ms`, by the time in their seqs. Offer them in seq order."""

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        self._first: OrderedDict[str, int] = OrderedDict()

    def first(self, digest: str, seq: int) -> int:
        """The seq of the first trigger with this digest within the window before `seq`: `seq` itself, or the one it repeats."""
        if not self.window_ms:  # not even two of one millisecond are the same
            return seq
        self._forget_before(seq)
        known = self._first.get(digest)
        if known is not None and not self._is_over(known, seq):
            return known
        self._first.pop(digest, None)
        self._first[digest] = seq
        return seq

    def correct(self, digest: str, seq: int, first: int) -> None:
        """Another recorder was first: what repeats `seq` repeats `first`."""
        if self._first.get(digest) == seq:
            self._first[digest] = first

    def forget(self, digest: str, seq: int) -> None:
        """The trigger `seq` was refused after all: the same again is not a duplicate."""
        if self._first.get(digest) == seq:
            del self._first[digest]

    def remaining_ms(self, seq: int, now_ms: int) -> int:
        """How much of the window of trigger `seq` is left; 0 or less: it is over."""
        return self.window_ms - (now_ms - unix_ms_of(seq))

    def _is_over(self, known: int, seq: int) -> bool:
        return unix_ms_of(seq) - unix_ms_of(known) > self.window_ms

    def _forget_before(self, seq: int) -> None:
        while self._first:
            digest, oldest = next(iter(self._first.items()))
            if not self._is_over(oldest, seq):
                return
            del self._first[digest]
