"""Publisher confirms of a channel, awaited one group of messages at a time."""

import asyncio

from aio_pika.exceptions import AMQPError


class Confirms:
    """Tracks the confirms of one group at a time: the next group starts when every message is confirmed or given up."""

    def __init__(self) -> None:
        self._published = self._settled = 0  # last published tag; highest tag settled by a multiple confirm
        self._open: set[int] = set()
        self._refused: list[int] = []
        self._waiter: asyncio.Future[None] | None = None

    async def all_of(self, count: int) -> list[bool]:
        """Wait for the confirms of the next `count` messages of the channel; return whether each was acked.

        Raises:
            AMQPError: a message was returned as unroutable.
            ConnectionError: the channel is closed.
        """
        first = self._published + 1
        self._published += count
        self._open.update(range(first, first + count))
        self._refused = []
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter
        refused = set(self._refused)
        return [tag not in refused for tag in range(first, first + count)]

    def settled(self, tag: int, *, multiple: bool, taken: bool) -> None:
        """Record an ack or nack for one message, or for all up to it."""
        tags = range(self._settled + 1, tag + 1) if multiple else range(tag, tag + 1)
        if not taken:
            self._refused += self._open.intersection(tags)
        self._open.difference_update(tags)
        if multiple:
            self._settled = max(self._settled, tag)
        if not self._open and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def returned(self, why: str) -> None:
        """Fail the group: a message was returned because its queue no longer exists."""
        self._fail(AMQPError(f"RabbitMQ returned a message as unroutable: {why}"))

    def ended(self, why: str) -> None:
        """Fail the group: the channel is closed, and no more confirms will arrive."""
        self._fail(ConnectionError(why))

    def _fail(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
