"""Runs a pipeline job in this process. Spark's output goes to a file; the console prints its own lines."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from manifold.console._output import err, spinner
from manifold.contracts.errors import ManifoldError
from manifold.settings import Settings

R = TypeVar("R")

SPARK_START_NOTE = " (Spark starts first)"  # for the spinner's text, if the job may start Spark
STDERR_DESCRIPTOR = 2
MAX_LOG_BYTES = 10 << 20  # the next job empties a larger file


def run_job(settings: Settings, spinner_text: str, work: Callable[[], R], *, quiet: bool) -> R:
    """Run `work` and return its result. Unless `quiet`, show a spinner with this text, if stderr is a terminal.

    If `work` raises another exception than a ManifoldError, the path of Spark's log is printed before the exception propagates.
    """
    log = settings.home / "logs" / "spark.log"
    try:
        with _libraries_stderr_redirected_to(log), spinner(spinner_text, quiet=quiet or not sys.stderr.isatty()):
            return work()
    except ManifoldError:
        raise
    except Exception:
        err.print(f"Spark's output is in {log}", highlight=False)
        raise


@contextmanager
def _libraries_stderr_redirected_to(log: Path) -> Iterator[None]:
    """Append the standard error of the JVM, its workers and C libraries to a file within the block.

    `sys.stderr` has a descriptor of its own (`_app.main`), so it is not redirected. If the file cannot be written, nothing is
    redirected.
    """
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        starts_anew = not log.exists() or log.stat().st_size > MAX_LOG_BYTES
        file = log.open("wb" if starts_anew else "ab")
    except OSError:
        yield
        return
    original = os.dup(STDERR_DESCRIPTOR)
    try:
        with file:
            os.dup2(file.fileno(), STDERR_DESCRIPTOR)
        yield
    finally:
        os.dup2(original, STDERR_DESCRIPTOR)
        os.close(original)
