"""Many simulated worlds over one real Redis in lockstep: their next requests share one round trip.

A world is a coroutine that awaits only its `Asking` client. Thousands of them share one process without an event loop, each is
deterministic, and the queues are the real scripts.
"""

import socket
from collections.abc import Callable, Coroutine, Generator, Iterable
from itertools import islice
from types import SimpleNamespace
from typing import Any, TypeVar

import hiredis
from redis.exceptions import NoScriptError, ResponseError

from manifold.contracts import keys
from tests.manifold.queues.clocked import at

T = TypeVar("T")
Command = tuple[Any, ...]
AT_ONCE = 1000  # worlds in lockstep
_BUFFER = 1 << 20
_CLOCK = "clock"  # the key under which each world passes its time to Redis before each request
_BY_THE_WORLD = at(f"redis.call('GET', '{_CLOCK}')")


class Asking:
    """The part of an asyncio Redis client that the queues need, with a private clock and private shared keys per world."""

    connection_pool = SimpleNamespace(connection_class=object)  # commands use `pipeline`

    def __init__(self, world: str, now_ms: Callable[[], int]) -> None:
        self._world, self._now_ms = world, now_ms

    async def execute_command(self, *command: Any) -> Any:
        """Execute one command."""
        (reply,) = await self.ask([self._own(command)])
        if isinstance(reply, Exception):
            raise reply
        return reply

    def pipeline(self, *, transaction: bool = False) -> "_Pipeline":
        """A pipeline of commands."""
        assert not transaction
        return _Pipeline(self)

    async def ask(self, commands: list[Command]) -> list[Any]:
        """Send commands of the caller and return their raw replies."""
        return (await _Ask([("SET", _CLOCK, self._now_ms()), *_BY_THE_WORLD(commands)]))[1:]

    def _own(self, command: Command) -> Command:
        shared = (keys.deadlines(0)[:-1], keys.OUTCOMES)
        return tuple(f"{self._world}:{part}" if isinstance(part, str) and part.startswith(shared) else part for part in command)


class _Pipeline:
    def __init__(self, asking: Asking) -> None:
        self._asking, self._commands = asking, list[Command]()

    def execute_command(self, *command: Any) -> None:
        self._commands.append(self._asking._own(command))

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        assert not raise_on_error
        return await self._asking.ask(self._commands)


class _Ask:
    def __init__(self, commands: list[Command]) -> None:
        self._commands = commands

    def __await__(self) -> Generator[list[Command], list[Any], list[Any]]:
        return (yield self._commands)


def in_lockstep(port: int, worlds: Iterable[Coroutine[list[Command], Any, T]]) -> list[T]:
    """Run the coroutines in lockstep and return their results in order."""
    results: dict[int, T] = {}
    source = enumerate(worlds)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        running: list[tuple[int, Coroutine[list[Command], Any, T], list[Any] | None]] = [
            (n, world, None) for n, world in islice(source, AT_ONCE)
        ]
        while running:
            asked: list[tuple[int, Coroutine[list[Command], Any, T], list[Command]]] = []
            for n, world, replies in running:
                try:
                    asked.append((n, world, world.send(replies)))
                except StopIteration as ended:
                    results[n] = ended.value
                    for more, another in islice(source, 1):
                        asked.append((more, another, another.send(None)))
            replies_of = iter(_round_trip(connection, [command for _, _, commands in asked for command in commands]))
            running = [(n, world, list(islice(replies_of, len(commands)))) for n, world, commands in asked]
    return [results[n] for n in sorted(results)]


def _round_trip(connection: socket.socket, commands: list[Command]) -> list[Any]:
    reader = hiredis.Reader(replyError=_error)
    packed = b"".join(hiredis.pack_command(command) for command in commands)
    connection.sendall(packed)
    replies: list[Any] = []
    while len(replies) < len(commands):
        reader.feed(connection.recv(_BUFFER))
        while (reply := reader.gets()) is not False:
            replies.append(reply)
    return replies


def _error(text: str) -> Exception:
    return NoScriptError(text) if text.startswith("NOSCRIPT") else ResponseError(text)
