"""Runs a job of the pipelines in this process. What Spark prints goes to a file; the console prints its own lines."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from manifold.console._output import err, working
from manifold.contracts.errors import ManifoldError
from manifold.settings import Settings

R = TypeVar("R")

FIRST = " (Spark starts first)"
STDERR = 2
MAX_LOG_BYTES = 10 << 20  # a longer file begins anew


def run_job(settings: Settings, what: str, work: Callable[[], R], *, quiet: bool) -> R:
    """Do the work, with a spinner that says `what` unless `quiet`. An error that is no user's mistake names Spark's log."""
    log = settings.home / "logs" / "spark.log"
    try:
        with _stderr_of_libraries_to(log), working(what, quiet=quiet or not sys.stderr.isatty()):
            return work()
    except ManifoldError:
        raise
    except Exception:
        err.print(f"what Spark printed is in {log}", highlight=False)
        raise


@contextmanager
def _stderr_of_libraries_to(log: Path) -> Iterator[None]:
    """What the JVM, its workers and C libraries write to standard error goes to the file.

    `sys.stderr` has a descriptor of its own (`_app.main`) and is not affected. A home that cannot be written has no such file.
    """
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        fresh = not log.exists() or log.stat().st_size > MAX_LOG_BYTES
        file = log.open("wb" if fresh else "ab")
    except OSError:
        yield
        return
    terminal = os.dup(STDERR)
    try:
        with file:
            os.dup2(file.fileno(), STDERR)
        yield
    finally:
        os.dup2(terminal, STDERR)
        os.close(terminal)
