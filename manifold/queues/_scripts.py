"""Lua scripts: one file per verb, preceded by shared code, and known to Redis by its SHA-1."""

import hashlib
from importlib.resources import files
from typing import Any

Args = tuple[Any, ...]

LOAD_COMMANDS: list[Args] = []  # commands that load all scripts into a Redis, or into each master of a cluster


class Script:
    """A Lua file of `package`, known to Redis by its SHA-1.

    `prepends` names the files of shared code that precede the script: `_owner` for a fanout queue, and also `_ecq` for a
    compacted queue. A script with shared code runs even if Redis is out of memory, because delivering frees memory, unless it
    `needs_memory`. A script without shared code states its flags in its own first line.

    `calls` names another script that this one calls, as a function of its arguments. `before` names a file whose code runs before
    all other code, as a shortcut.
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
        flags_line = "#!lua flags=allow-oom\n" if prepends and not needs_memory else ""  # Redis requires it to be the first line
        shortcut = _text(before) if before else ""
        shared_code = "".join(_text(file) for file in prepends)
        called_function = f"local function {calls}(ARGV)\n{_text(calls)}end\n" if calls else ""
        text = flags_line + shortcut + shared_code + called_function + _text(name, package)
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        LOAD_COMMANDS.append(("SCRIPT", "LOAD", text))


NO_SHARED_CODE: tuple[str, ...] = ()  # for scripts whose keys belong to no owner
ECQ_SHARED_CODE = ("_owner", "_ecq")


def _text(name: str, package: str = "manifold.queues") -> str:
    """Read a Lua file of the package; not by its path, because on a Spark cluster the code is inside an archive."""
    return (files(package) / "lua" / f"{name}.lua").read_text()
