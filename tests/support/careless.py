"""A faulty broker: Mosquitto behind a proxy that turns a certain text to its clients into invalid UTF-8.

EMQX passes such texts on unchanged if its `strict_mode` is off; Mosquitto never does.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

GOOD, BAD = "spoil-this-text", b"spoil-this-\xff\xfe\xfd\xfc"


class Cable:
    """Connect to `port`; `cut` ends every connection. While `deaf`, the broker receives nothing from clients."""

    def __init__(self, to: int) -> None:
        self._to, self._writers = to, set[asyncio.StreamWriter]()
        self.tasks: set[asyncio.Task[None] | None] = set()
        self.port = self.connections = 0
        self.deaf = False

    def cut(self) -> None:
        """Reset every connection (RST)."""
        for writer in self._writers:
            writer.transport.abort()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one connection."""
        self.connections += 1
        self.tasks.add(asyncio.current_task())
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers |= {writer, to_writer}
        await asyncio.gather(self._copy(reader, to_writer), self._spoil(to_reader, writer), return_exceptions=True)
        self._writers -= {writer, to_writer}

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(65_536):
            if not self.deaf:
                writer.write(chunk)
                await writer.drain()
        writer.close()

    async def _spoil(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept = b""
        while chunk := await reader.read(65_536):
            kept = (kept + chunk).replace(GOOD.encode(), BAD)
            whole = len(kept) - next((n for n in range(len(GOOD) - 1, 0, -1) if kept.endswith(GOOD[:n].encode())), 0)
            writer.write(kept[:whole])
            kept = kept[whole:]
            await writer.drain()
        writer.close()


@asynccontextmanager
async def careless(broker: int) -> AsyncIterator[Cable]:
    """The proxy for the broker on port `broker`."""
    cable = Cable(broker)
    server = await asyncio.start_server(cable.accept, "127.0.0.1", 0)
    cable.port = server.sockets[0].getsockname()[1]
    try:
        yield cable
    finally:
        server.close()
        cable.cut()
        await asyncio.gather(*(task for task in cable.tasks if task), return_exceptions=True)
