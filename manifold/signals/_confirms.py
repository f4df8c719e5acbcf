"""The unconfirmed publishes of a channel: the messages of a group are waited for together."""

import asyncio

from aio_pika.exceptions import AMQPError


class Confirms:
    """Groups are published one after the other: each is confirmed, or given up, before the next one."""

    def __init__(self) -> None:
        self._published = self._settled = 0  # the last tag; and up to which all are settled
        self._open: set[int] = set()
        self._refused: list[int] = []
        self._waiter: asyncio.Future[None] | None = None

    async def all_of(self, count: int) -> list[bool]:
        """Of the next `count` messages of the channel, which are being written, whether the server has taken each.

        Raises:
            AMQPError: one came back, because no queue takes it.
            ConnectionError: the channel has ended.
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
        """The server has said so of this message, or of all up to it."""
        tags = range(self._settled + 1, tag + 1) if multiple else range(tag, tag + 1)
        if not taken:
            self._refused += self._open.intersection(tags)
        self._open.difference_update(tags)
        if multiple:
            self._settled = max(self._settled, tag)
        if not self._open and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def returned(self, why: str) -> None:
        """A message came back: the queue that takes it is gone."""
        self._fail(AMQPError(f"RabbitMQ has given a message back: {why}"))

    def ended(self, why: str) -> None:
        """Nothing more will be confirmed."""
        self._fail(ConnectionError(why))

    def _fail(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
