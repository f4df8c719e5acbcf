"""Detects triggers that repeat another one within the dedupe window."""

from collections import OrderedDict

from manifold.contracts.seq import unix_ms_of


class DedupeWindow:
    """The digests of the triggers within `window_ms`, measured by the times in their seqs. Call `first` in seq order."""

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        self._first: OrderedDict[str, int] = OrderedDict()  # digest → seq of the first trigger with it, in seq order

    def first(self, digest: str, seq: int) -> int:
        """Return the seq of the first trigger with this digest in the window that ends at `seq`.

        If that is `seq` itself, the trigger is new; otherwise it is a duplicate of the returned one.
        """
        if not self.window_ms:  # without a window, even triggers in the same millisecond are distinct
            return seq
        self._forget_before(seq)
        known = self._first.get(digest)
        if known is not None and not self._has_window_ended(known, seq):
            return known
        self._first.pop(digest, None)
        self._first[digest] = seq
        return seq

    def correct(self, digest: str, seq: int, first: int) -> None:
        """Note that trigger `seq` is a duplicate of `first`, which another recorder accepted.

        Triggers that repeat `seq` then count as duplicates of `first`.
        """
        if self._first.get(digest) == seq:
            self._first[digest] = first

    def forget(self, digest: str, seq: int) -> None:
        """Forget trigger `seq`, because it was refused after all: repeating it makes no duplicate."""
        if self._first.get(digest) == seq:
            del self._first[digest]

    def remaining_ms(self, seq: int, now_ms: int) -> int:
        """The milliseconds that remain of the window that began with trigger `seq`; 0 or less if it has ended."""
        return self.window_ms - (now_ms - unix_ms_of(seq))

    def _has_window_ended(self, first: int, seq: int) -> bool:
        return unix_ms_of(seq) - unix_ms_of(first) > self.window_ms

    def _forget_before(self, seq: int) -> None:
        """Forget the oldest triggers, up to the first one whose window still lasts at `seq`."""
        while self._first:
            digest, oldest = next(iter(self._first.items()))
            if not self._has_window_ended(oldest, seq):
                return
            del self._first[digest]
