"""Runs a pipeline job in this process. Spark's output goes to a file; the console prints its own lines."""

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
MAX_LOG_BYTES = 10 << 20  # the file is truncated above this size


def run_job(settings: Settings, what: str, work: Callable[[], R], *, quiet: bool) -> R:
    """Run `work` with a spinner that says `what`, unless `quiet`. Unexpected errors name Spark's log."""
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
    """Redirect the standard error of the JVM, its workers and C libraries to a file.

    `sys.stderr` has its own descriptor (`_app.main`) and is not affected. Without write access to the home nothing is redirected.
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
