"""Lua scripts: one file per verb, preceded by shared code, and known to Redis by its SHA-1."""

import hashlib
from importlib.resources import files
from typing import Any

Args = tuple[Any, ...]

LOADS: list[Args] = []  # commands that load all scripts into a Redis, or into each master of a cluster


class Script:
    """A `.lua` file. Only a script that `adds` is rejected when Redis is out of memory, because delivering frees memory.

    `shares` names the files that precede it: `_owner` for a fanout queue, `_owner` and `_ecq` for a compacted one. `calls` names
    another verb, which becomes a function of its arguments. `before` names a file that precedes all others: a shortcut. `package`
    is the package whose folder `lua` has the verb's own file.
    """

    def __init__(
        self,
        name: str,
        *,
        shares: tuple[str, ...] = ("_owner",),
        adds: bool = False,
        calls: str = "",
        before: str = "",
        package: str = "manifold.queues",
    ) -> None:
        head = ("" if adds else "#!lua flags=allow-oom\n") + "".join(map(_text, shares)) if shares else ""
        if calls:
            head += f"local function {calls}(ARGV)\n{_text(calls)}end\n"
        if before:
            head = _text(before) + head
        text = head + _text(name, package)
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        LOADS.append(("SCRIPT", "LOAD", text))


NOBODYS: tuple[str, ...] = ()  # no shared code: its keys belong to no owner
OF_ECQ = ("_owner", "_ecq")


def _text(name: str, package: str = "manifold.queues") -> str:
    return (files(package) / "lua" / f"{name}.lua").read_text()  # not by path: on a Spark cluster, the code is inside an archive
