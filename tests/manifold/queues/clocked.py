"""Redis' time under test control: the real scripts with a replaced clock."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from manifold.queues._drivers import BlockingBatch, _exchange
from manifold.queues._scripts import LOAD_COMMANDS, Args

_TIME = "redis.call('TIME')"


def at(ms: str) -> Callable[[Sequence[Args]], list[Args]]:
    """Rewrite commands so that their scripts read `ms`, a Lua expression in milliseconds, as Redis' clock."""
    seconds = f"(function(ms) return {{math.floor(ms / 1000), ms % 1000 * 1000}} end)(tonumber({ms}))"
    known = {text: text.replace(_TIME, seconds) for *_, text in LOAD_COMMANDS}  # those of the queues; modules may add theirs
    shas = {_sha(before): _sha(after) for before, after in known.items()}
    assert any(before != after for before, after in shas.items()), "the scripts read the time differently"

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
    """A batch in which Redis' clock equals the time given to each verb."""

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
    return [redis.script_load(text) for *_, text in commands]  # on a cluster, to each master
