"""Messages whose target queue is full. They stay unacknowledged and are retried in chunks, while all other messages pass."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable

from manifold.signals._disposition import Disposition, Key
from manifold.signals._retry import Retry

RETRY_S = 2.0  # between attempts while a queue rejects publishes


class HeldBack:
    """Held-back messages of one session, oldest first.

    When a chunk of them is due to be published again, `is_due` becomes true until `take_chunk`, and `wake` is called.
    """

    def __init__(self, retry: Retry, wake: Callable[[], None]) -> None:
        self.is_due = False
        self._retry, self._wake = retry, wake
        self._disposition = Disposition()
        self._tags: deque[int] = deque()  # in retry order
        self._reported: set[str] = set()  # full queues that health and log currently report
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._tags)

    @property
    def keys(self) -> frozenset[Key]:
        """Keys of the held-back signals; another message with one of them is a duplicate."""
        return self._disposition.claimed_keys

    @property
    def body_bytes(self) -> int:
        """Bytes of the held-back bodies."""
        return sum(len(received.body) for received in self._disposition.received)

    @property
    def by_consumer(self) -> Counter[str]:
        """Count of held-back messages per consumer tag."""
        return Counter(received.consumer for received in self._disposition.received)

    def add(self, rejected: Disposition) -> None:
        """Hold back the rejected messages of a group, which may be none. If any message waits, schedule the next attempt."""
        self._disposition.add(rejected)
        self._tags.extend(received.tag for received in rejected.received)
        self._report(set(self._disposition.rejected_by.values()))
        if self._tags and self._timer is None and not self.is_due:
            delay_s = RETRY_S if rejected.received else 0  # no rejection: the queue accepts messages, so retry at once
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._set_due)

    def take_chunk(self, max_messages: int) -> Disposition:
        """Remove and return the next chunk, of at most `max_messages`; the caller passes the messages rejected again to `add`."""
        self.is_due = False
        count = min(max_messages, len(self._tags))
        tags = {self._tags.popleft() for _ in range(count)}
        chunk, self._disposition = self._disposition.split(tags)
        return chunk

    def clear(self) -> None:
        """Drop all messages: the session has ended, and RabbitMQ redelivers them."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.is_due = None, False
        self._disposition = Disposition()
        self._tags.clear()
        self._report(set())

    def _set_due(self) -> None:
        self._timer, self.is_due = None, True
        self._wake()

    def _report(self, queues: set[str]) -> None:
        """Report exactly these queues as full, and withdraw the report of any other queue."""
        for queue in self._reported - queues:
            self._retry.set_problem(queue, None)
        for queue in sorted(queues):
            self._retry.set_problem(queue, f"the queue {queue} is full: messages for it wait unacknowledged, all others pass")
        self._reported = queues
