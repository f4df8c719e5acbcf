"""Messages as they are taken and settled by each library: what the door does, without checks, disk and Redis."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

PREFETCH, GROUP = 50, 25  # as the door has
JSON, PERSISTENT = "application/json", 2
SENT_ON = ("x-correlation-id", "x-nonce", "x-timestamp-auth")  # as many headers as a processed signal has
Taken = tuple[bytes, Any, int]  # body, headers, delivery tag
Publish = Callable[[list[Taken]], Awaitable[None]]  # each confirmed
Ack = Callable[[int], Awaitable[None]]  # this one, and all before it
Started = Callable[[], None]


class Groups:
    """Messages as they come, and as they are settled: at most `GROUP` together, and one group after the other."""

    def __init__(self, count: int) -> None:
        self._left, self._came, self._waiting = count, asyncio.Event(), list[Taken]()

    def take(self, body: bytes, headers: Any, tag: int) -> None:
        """One has come."""
        self._waiting.append((body, headers, tag))
        self._came.set()

    async def settle(self, publish: Publish, ack: Ack) -> None:
        """Return when all are acknowledged."""
        while self._left:
            await self._came.wait()
            group, self._waiting = self._waiting[:GROUP], self._waiting[GROUP:]
            if not self._waiting:
                self._came.clear()
            await publish(group)
            await ack(group[-1][2])
            self._left -= len(group)


def about(headers: Any, message_id: int) -> dict[str, Any]:
    """Properties as a processed signal has them."""
    kept = {name: headers[name] for name in SENT_ON}
    about = {"content_type": JSON, "headers": kept, "delivery_mode": PERSISTENT, "message_id": f"{message_id:064x}"}
    return about | {"timestamp": datetime.now(UTC)}
