"""Lua scripts: a file for each verb, with shared code in front of it, and the SHA-1 by which Redis knows it."""

import hashlib
from importlib.resources import files
from typing import Any

Args = tuple[Any, ...]

LOADS: list[Args] = []  # the commands that make all scripts known to a Redis, or to each master of a cluster


class Script:
    """One `.lua` file. Only a script that `adds` is refused when Redis is out of memory, because delivering makes room.

    `shares` names the files in front of it: `_owner` for a fanout queue, `_owner` and `_ecq` for a compacted one. `calls` names
    another verb, which becomes a function of its arguments. `before` names a file that stands before all others: a short cut.
    `room` is the package whose folder `lua` has the verb's own file.
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


NOBODYS: tuple[str, ...] = ()  # shares nothing: its keys are no owner's
OF_ECQ = ("_owner", "_ecq")


def _text(name: str, package: str = "manifold.queues") -> str:
    return (files(package) / "lua" / f"{name}.lua").read_text()  # not by a path: on a cluster the code is in an archive
