"""Journaled but unacknowledged messages of this process, which are not journaled again on redelivery."""

from collections import OrderedDict
from collections.abc import Iterable

MAX_REMEMBERED = 1 << 16  # messages; a forgotten one is journaled again, and the lake deduplicates


class Recorded:
    """A bounded set of message identities; the oldest are evicted first.

    A session may end repeatedly between journal and acknowledgement, for instance while an alarm blocks confirms.
    """

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        self._most = most
        self._there: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, identity: str) -> bool:
        return identity in self._there

    def add(self, identities: Iterable[str]) -> None:
        """Remember journaled messages."""
        for identity in identities:
            self._there[identity] = None
            self._there.move_to_end(identity)
        while len(self._there) > self._most:
            self._there.popitem(last=False)

    def forget(self, identities: Iterable[str]) -> None:
        """Forget acknowledged messages: the same message sent again counts as a new one."""
        for identity in identities:
            self._there.pop(identity, None)
