"""Lua scripts: one file per verb, preceded by shared code, and known to Redis by its SHA-1."""

import hashlib
from importlib.resources import files
from typing import Any

Args = tuple[Any, ...]

LOAD_COMMANDS: list[Args] = []  # commands that load all scripts into a Redis, or into each master of a cluster


class Script:
    """A `.lua` file. Only a script that `needs_memory` is rejected when Redis is out of memory, because delivering frees memory.

    `prepends` names the files that precede it: `_owner` for a fanout queue, also `_ecq` for a compacted one. `calls` names
    another verb, which becomes a function of its arguments. `before` names a file that precedes all others: a shortcut. `package`
    is the package whose folder `lua` has the verb's own file.
    """

    def __init__(
        self,
        name: str,
        *,
        prepends: tuple[str, ...] = ("_owner",),
        needs_memory: bool = False,
        calls: str = "",
        before: str = "",
        package: str = "manifold.queues",
    ) -> None:
        head = "".join(map(_text, prepends))
        if prepends and not needs_memory:
            head = "#!lua flags=allow-oom\n" + head
        if calls:
            head += f"local function {calls}(ARGV)\n{_text(calls)}end\n"
        if before:
            head = _text(before) + head
        text = head + _text(name, package)
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        LOAD_COMMANDS.append(("SCRIPT", "LOAD", text))


NO_SHARED_CODE: tuple[str, ...] = ()  # no shared code: its keys belong to no owner
ECQ_SHARED_CODE = ("_owner", "_ecq")


def _text(name: str, package: str = "manifold.queues") -> str:
    return (files(package) / "lua" / f"{name}.lua").read_text()  # not by path: on a Spark cluster, the code is inside an archive
