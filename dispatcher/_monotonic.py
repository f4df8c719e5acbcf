"""A monotonic clock, which measures durations within this process."""

import time

# CLOCK_BOOTTIME, where it exists, continues while the machine is suspended: a publish that was late before is late afterwards.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def monotonic_ms() -> int:
    """Milliseconds since an arbitrary instant; not comparable between processes."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000
