"""`python -m tests.stores.stages`: run jobs one after the other in one process with one Spark, one per line of standard input.

Each is what `python -m pipelines <stage>` or `manifold <command> --json` runs, or `namespaces`, with its own settings; its result
is a line of standard output, followed by its exit status. The Spark is started for the first job, with the jars of every catalog
and store, and each job has its own session: a start takes as long as a job, and as long again to start workers and load classes.
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

from manifold.contracts.errors import ManifoldError
from manifold.settings import PREFIX, Settings, load_settings
from pipelines.catalog import naming_the_catalog
from pipelines.spark import conf, session
from tests.support.servers import ROOT

STATUS, MANIFOLD, NAMESPACES = "status", "manifold", "namespaces"
# The class archive of Spark is valid for the first class path alone, and for further jars behind it.
FIRST_JARS, FURTHER_JARS = [conf.ICEBERG_JAR, conf.SQLITE_JAR], [conf.POSTGRESQL_JAR, conf.S3_JAR]
SAID = 5000  # the last characters of a process's output, for failure messages
_first: list[SparkSession] = []  # of this process, once a job has started it


class Failed(AssertionError):
    """A job ended with this exit status after this output."""

    def __init__(self, status: str, output: str) -> None:
        super().__init__(f"{STATUS} {status}: {output}")
        self.status, self.output = status, output


class Stages:
    """The process that waits for jobs."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process, self._log = process, log

    def run(self, job: str, variables: Mapping[str, str]) -> dict[str, Any]:
        """Run one job with these settings alone, and return its result.

        Raises:
            Failed: the job failed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        before = self._log.stat().st_size
        self._process.stdin.write(json.dumps([job, dict(variables)]) + "\n")
        self._process.stdin.flush()
        results: list[dict[str, Any]] = []
        status = "of the whole process"
        for line in self._process.stdout:
            if line.startswith("{"):
                results.append(json.loads(line))
            if line.startswith(STATUS):
                _, status = line.split()
                break
        if status != "0":
            raise Failed(status, self._log.read_bytes()[before:].decode(errors="replace")[-SAID:])
        return results[-1]


@contextmanager
def stages_with(env: Mapping[str, str], log: Path) -> Iterator[Stages]:
    """The process with this environment; it ends with the block."""
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.stores.stages"]
    further = {"SPARK_DIST_CLASSPATH": os.pathsep.join(str(Settings().jars / jar) for jar in FURTHER_JARS)}
    with (
        log.open("a") as said,
        subprocess.Popen(
            command, cwd=ROOT, env={**env, **further}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True
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
    conf.jars_for = _first_jars
    for line in sys.stdin:
        job, variables = json.loads(line)
        for name in [name for name in os.environ if name.startswith(PREFIX)]:
            del os.environ[name]
        os.environ.update(variables)
        name, *arguments = shlex.split(job)
        run = {MANIFOLD: _command, NAMESPACES: _namespaces}.get(name)
        status = run(arguments) if run else main([name, *arguments])
        sys.stdout.write(f"{STATUS} {status}\n")
        sys.stdout.flush()


def _first_jars(settings: Settings) -> list[str]:
    return FIRST_JARS


@contextmanager
def _standing(settings: Settings, job: str, java_options: str) -> Iterator[SparkSession]:
    """A session of the Spark that is started for the first job and outlives it."""
    if not _first:
        small = settings.model_copy(update={"spark_driver_memory": "1g"})
        _first.append(session.open_session(small, job, java_options=java_options))
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


def _namespaces(_: list[str]) -> int:
    """Print the namespaces that Spark finds in the catalog; return 1 if it does not answer."""
    settings = load_settings()
    try:
        with naming_the_catalog(settings), session.session(settings, NAMESPACES) as spark:
            found = [row["namespace"] for row in spark.sql(f"SHOW NAMESPACES IN {settings.catalog_name}").collect()]
    except ManifoldError as exc:
        sys.stderr.write(f"{type(exc).__name__}: {exc}\n")
        return 1
    sys.stdout.write(json.dumps({NAMESPACES: found}) + "\n")
    return 0


if __name__ == "__main__":
    _serve()
