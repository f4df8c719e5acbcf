"""`python -m tests.stores.stages`: run stages one after the other in one process with one JVM, one per line of standard input.

Each is what `python -m pipelines <stage>` runs, with its own environment variables; its result is a line of standard output,
followed by its exit status.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.servers import ROOT

STATUS = "status"
SAID = 5000  # the last characters of a process's output, for failure messages


class Stages:
    """The process that waits for stages."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process, self._log = process, log

    def run(self, stage: str, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Run one stage and return its result. `variables` replace the previous ones, for this and later stages.

        Raises:
            AssertionError: the stage failed; the message has its output.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([stage, dict(variables or {})]) + "\n")
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

    for line in sys.stdin:
        stage, variables = json.loads(line)
        os.environ.update(variables)
        status = main(shlex.split(stage))
        sys.stdout.write(f"{STATUS} {status}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
