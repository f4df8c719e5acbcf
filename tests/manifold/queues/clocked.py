"""Redis' time as a test wants it: the scripts are the real ones, but for where they read the time."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from manifold.queues._drivers import BlockingBatch, _exchange
from manifold.queues._scripts import LOAD_COMMANDS, Args

_TIME = "redis.call('TIME')"


def at(ms: str) -> Callable[[Sequence[Args]], list[Args]]:
    """What makes of commands those in whose scripts it is `ms`, a Lua expression, milliseconds by the clock of Redis."""
    seconds = f"(function(ms) return {{math.floor(ms / 1000), ms % 1000 * 1000}} end)(tonumber({ms}))"
    known = {text: text.replace(_TIME, seconds) for *_, text in LOAD_COMMANDS}  # those of the queues; other rooms may add theirs
    shas = {_sha(before): _sha(after) for before, after in known.items()}
    assert any(before != after for before, after in shas.items()), "the scripts read the time in another way"

    def clocked(command: Args) -> Args:
        match command:
            case ("EVALSHA", sha, *rest) if sha in shas:
                return ("EVALSHA", shas[sha], *rest)
            case ("SCRIPT", "LOAD", text) if text in known:
                return ("SCRIPT", "LOAD", known[text])
        return command

    return lambda commands: [clocked(command) for command in commands]


def _sha(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


AT_THE_SAME_TIME = at("ARGV[1]")


class ClockedBatch(BlockingBatch):
    """A batch in which the clock of Redis is the one by which each verb was given its time."""

    def run(self, *, tolerant: bool = False) -> list[Any]:
        exchanges = self.exchanges(tolerant=tolerant)
        try:
            commands = next(exchanges)
            while True:
                is_load = commands is LOAD_COMMANDS
                clocked = AT_THE_SAME_TIME(commands)
                commands = exchanges.send(_loaded(self._redis, clocked) if is_load else _exchange(self._redis, clocked))
        except StopIteration as ended:
            replies: list[Any] = ended.value
            return replies


def _loaded(redis: Any, commands: Sequence[Args]) -> list[Any]:
    return [redis.script_load(text) for *_, text in commands]  # of a cluster, to each master
