"""Lua scripts: one file per verb, preceded by shared code, and known to Redis by its SHA-1."""

import hashlib
from importlib.resources import files
from typing import Any

Args = tuple[Any, ...]

LOAD_COMMANDS: list[Args] = []  # commands that load all scripts into a Redis, or into each master of a cluster


class Script:
    """A Lua file of `package`, known to Redis by its SHA-1.

    Only a script that `needs_memory` is rejected when Redis is out of memory; all others run, because delivering frees memory.
    `prepends` names the files of shared code that precede the script: `_owner` for a fanout queue, and also `_ecq` for a
    compacted queue. `calls` names another script that this one calls, as a function of its arguments. `before` names a file that
    runs before all others, as a shortcut.
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
        shared_code = "".join(map(_text, prepends))
        if prepends and not needs_memory:
            shared_code = "#!lua flags=allow-oom\n" + shared_code
        if calls:
            shared_code += f"local function {calls}(ARGV)\n{_text(calls)}end\n"
        if before:
            shared_code = _text(before) + shared_code
        text = shared_code + _text(name, package)
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        LOAD_COMMANDS.append(("SCRIPT", "LOAD", text))


NO_SHARED_CODE: tuple[str, ...] = ()  # for scripts whose keys belong to no owner
ECQ_SHARED_CODE = ("_owner", "_ecq")


def _text(name: str, package: str = "manifold.queues") -> str:
    # Not by path, because on a Spark cluster the code is inside an archive.
    return (files(package) / "lua" / f"{name}.lua").read_text()
