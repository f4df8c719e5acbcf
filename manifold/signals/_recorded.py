"""Messages that are in the journal of this process and not acknowledged: delivered again, they are not written again."""

from collections import OrderedDict
from collections.abc import Iterable

MAX_REMEMBERED = 1 << 16  # messages; what was forgotten is written again, and the lake takes one of it


class Recorded:
    """Messages by their identities; bounded, the oldest go first.

    A stay at RabbitMQ may end after the journal and before the acknowledgement, again and again: while an alarm keeps it from
    confirming, for instance.
    """

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        self._most = most
        self._there: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, identity: str) -> bool:
        return identity in self._there

    def add(self, identities: Iterable[str]) -> None:
        """These are on disk."""
        for identity in identities:
            self._there[identity] = None
            self._there.move_to_end(identity)
        while len(self._there) > self._most:
            self._there.popitem(last=False)

    def forget(self, identities: Iterable[str]) -> None:
        """These are acknowledged: whoever sends the same again sends another message."""
        for identity in identities:
            self._there.pop(identity, None)
