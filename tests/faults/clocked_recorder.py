"""`python -m tests.faults.clocked_recorder <file>`: the recorder, with a wall clock that the file moves. Nothing in the product.

What of the recorder's own code asks for the time of day gets the true time and the file's offset; monotonic time is as it is.
"""

import os
import struct
import sys
import time
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Self

OFFSET = struct.Struct("q")  # nanoseconds


class Clock:
    """The offset of a recorder's clock, as the one who moves it sees it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.step(0)

    def step(self, seconds: float) -> None:
        """From now on that clock is so much fast, or slow."""
        self.file.write_bytes(OFFSET.pack(round(seconds * 1e9)))  # one write of eight bytes: whole or not at all


def deceive(file: Path) -> None:
    """Move this process's clock."""
    true_ns, fd = time.time_ns, os.open(file, os.O_RDONLY)

    def offset_ns() -> int:
        found = os.pread(fd, OFFSET.size, 0)
        return int(OFFSET.unpack(found)[0]) if len(found) == OFFSET.size else 0

    class Moved(datetime):
        """What `datetime` is to the recorder here."""

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) + timedelta(microseconds=offset_ns() // 1000)

    time.time_ns = lambda: true_ns() + offset_ns()
    time.time = lambda: time.time_ns() / 1e9
    for name, module in list(sys.modules.items()):
        if name.startswith("manifold.") and vars(module).get("datetime") is datetime:
            vars(module)["datetime"] = Moved


if __name__ == "__main__":
    from manifold.recorder.__main__ import main

    deceive(Path(sys.argv[1]))
    sys.exit(main())
