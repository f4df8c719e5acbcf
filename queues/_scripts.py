"""The Lua scripts: one a verb, with what they share in front of it, under the SHA-1 by which Redis knows each."""

import hashlib
from importlib.resources import files
from typing import Any

Args = tuple[Any, ...]

_LUA = files("queues") / "lua"  # not by a path: on a cluster the code is in an archive
_SHARED = (_LUA / "_owner.lua").read_text()
LOADS: list[Args] = []  # the commands that make all scripts known to a Redis, or to each master of a cluster


class Script:
    """One `.lua` file. Only one that `adds` is refused where Redis is out of memory: delivering what is queued makes room.

    `calls` names another verb, which becomes a function of its arguments; `before` a short cut past all of it.
    """

    def __init__(self, name: str, *, shared: bool = True, adds: bool = False, calls: str = "", before: str = "") -> None:
        head = ("" if adds else "#!lua flags=allow-oom\n") + _SHARED if shared else ""
        if calls:
            head += f"local function {calls}(ARGV)\n{(_LUA / f'{calls}.lua').read_text()}end\n"
        if before:
            head = (_LUA / f"{before}.lua").read_text() + head
        text = head + (_LUA / f"{name}.lua").read_text()
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        LOADS.append(("SCRIPT", "LOAD", text))
