"""A TCP proxy between clients and the platform that drops connections in the middle of a packet."""

import asyncio
import contextlib
import socket
import struct
from random import Random

_CHUNK = 1 << 16
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST at once, as a dead network does


class Cutter:
    """`async with Cutter(host, port, rng) as cutter`: clients connect to `cutter.port`."""

    def __init__(self, host: str, port: int, rng: Random) -> None:
        self._host, self._to, self._rng = host, port, rng
        self._server: asyncio.Server | None = None
        self._doomed: set[asyncio.StreamWriter] = set()  # connections to drop during their next transfer
        self._open: dict[asyncio.StreamWriter, asyncio.StreamWriter] = {}  # client side → platform side
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> "Cutter":
        self._server = await asyncio.start_server(self._pass_on, self._host, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for ends in list(self._open.items()):
            for end in ends:
                _reset(end)
        await asyncio.gather(*self._tasks)

    def cut(self, share: float) -> int:
        """Drop about this share of the connections, each during its next transfer; return their number."""
        chosen = [pair for pair in self._open.items() if self._rng.random() < share]
        for pair in chosen:
            self._doomed.update(pair)
        return len(chosen)

    def heal(self) -> None:
        """Stop dropping connections."""
        self._doomed.clear()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            to_reader, to_writer = await asyncio.open_connection(self._host, self._to)
        except OSError:
            _reset(writer)
            return
        self._open[writer] = to_writer
        ways = [asyncio.create_task(self._one_way(reader, to_writer)), asyncio.create_task(self._one_way(to_reader, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            del self._open[writer]
            for end in (writer, to_writer):
                self._doomed.discard(end)
                _reset(end)

    async def _one_way(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while part := await reader.read(_CHUNK):
                if writer in self._doomed:
                    writer.write(part[: self._rng.randrange(1, max(2, len(part)))])
                    await writer.drain()
                    return
                writer.write(part)
                await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None and writer.transport is not None and not writer.transport.is_closing():
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.close()
