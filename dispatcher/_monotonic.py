"""A monotonic clock, which measures durations within this process."""

import time

# Where it exists, use CLOCK_BOOTTIME, which continues while the machine is suspended, so that deadlines pass in that time too.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def monotonic_ms() -> int:
    """Milliseconds since an arbitrary instant; not comparable between processes."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000
