"""A clock that nobody sets: durations within this process are measured by it."""

import time

# It counts on while the machine is suspended, where the system has such a clock: a publish that was late before is late after it.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady_ms() -> int:
    """Milliseconds since some instant. They mean nothing in another process."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000
