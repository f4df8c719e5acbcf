"""`python -m tests.stores.stages`: run jobs one after the other in one process with one Spark, one per line of standard input.

Each is what `python -m pipelines <stage>` or `manifold <command> --json` runs, with its own environment variables; its result is
a line of standard output, followed by its exit status. The Spark is started for the first job, and each job has its own session:
to start, it takes as long as a job, and as long again to start workers and to load classes.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from manifold.settings import Settings
from pipelines.spark import session
from tests.support.servers import ROOT

STATUS, MANIFOLD = "status", "manifold"
SAID = 5000  # the last characters of a process's output, for failure messages
_first: list[SparkSession] = []  # of this process, once a job has started it


class Stages:
    """The process that waits for jobs."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process, self._log = process, log

    def run(self, job: str, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Run one job and return its result. `variables` replace the previous ones, for this and later jobs.

        Raises:
            AssertionError: the job failed; the message has its output.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([job, dict(variables or {})]) + "\n")
        self._process.stdin.flush()
        results: list[dict[str, Any]] = []
        for line in self._process.stdout:
            if line.startswith("{"):
                results.append(json.loads(line))
            if line.startswith(STATUS):
                assert line.split() == [STATUS, "0"], self._said()
                return results[-1]
        raise AssertionError(self._said())

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-SAID:]


@contextmanager
def stages_with(env: Mapping[str, str], log: Path) -> Iterator[Stages]:
    """The process with this environment; it ends with the block."""
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.stores.stages"]
    with (
        log.open("a") as said,
        subprocess.Popen(
            command, cwd=ROOT, env=dict(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True
        ) as process,
    ):
        try:
            yield Stages(process, log)
            assert process.stdin is not None
            process.stdin.close()  # no more input
            process.wait(60)
        finally:
            process.kill()


def _serve() -> None:
    from pipelines.cli import main

    session._jvm_session = _standing
    for line in sys.stdin:
        job, variables = json.loads(line)
        os.environ.update(variables)
        name, *arguments = shlex.split(job)
        status = _command(arguments) if name == MANIFOLD else main([name, *arguments])
        sys.stdout.write(f"{STATUS} {status}\n")
        sys.stdout.flush()


@contextmanager
def _standing(settings: Settings, job: str, java_options: str) -> Iterator[SparkSession]:
    """A session of the Spark that is started for the first job and outlives it."""
    if not _first:
        _first.append(session.open_session(settings, job, java_options=java_options))
    spark = _first[0].newSession()
    session.configure(spark, settings)
    yield spark


def _command(arguments: list[str]) -> int:
    """Run `manifold` with these arguments, which include `--json`; print its result in one line, and return its exit status."""
    from manifold.console._app import make_app

    with redirect_stdout(StringIO()) as said:
        try:
            make_app(arguments[0])(arguments, prog_name=MANIFOLD)
        except SystemExit as ended:
            status = int(ended.code or 0)
    if not status:
        sys.stdout.write(json.dumps(json.loads(said.getvalue())) + "\n")
    return status


if __name__ == "__main__":
    _serve()
