"""`python -m tests.faults.clocked_recorder <file>`: the recorder with a wall clock offset read from a file.

The recorder's own code gets the true time plus that offset; monotonic time is unchanged. The product has no such switch.
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
    """The offset of a recorder's clock, as set by the test."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.step(0)

    def step(self, seconds: float) -> None:
        """Set the offset of the clock."""
        self.file.write_bytes(OFFSET.pack(round(seconds * 1e9)))  # one write of eight bytes is atomic


def deceive(file: Path) -> None:
    """Patch the clock of this process."""
    true_ns, fd = time.time_ns, os.open(file, os.O_RDONLY)

    def offset_ns() -> int:
        found = os.pread(fd, OFFSET.size, 0)
        return int(OFFSET.unpack(found)[0]) if len(found) == OFFSET.size else 0

    class AnyInstant(type):
        """Counts the instants of libraries, which know only the original class, as instances too."""

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, datetime)

    class Moved(datetime, metaclass=AnyInstant):
        """The recorder's replacement of `datetime`."""

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
