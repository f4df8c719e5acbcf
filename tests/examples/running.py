"""Run an example from another folder, as its users do."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from manifold.settings import Settings
from tests.support.servers import ROOT, wait_until

EXAMPLES = ROOT / "examples"
BOUND_S = 120


def at_broker(settings: Settings) -> dict[str, str]:
    """The environment of the MQTT examples."""
    return {"MQTT_HOST": settings.host, "MQTT_PORT": str(settings.mqtt_port)}


def run(*command: str | Path, folder: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to completion."""
    whole = {**os.environ, **(env or {})}
    return subprocess.run(command, cwd=folder, env=whole, capture_output=True, text=True, timeout=BOUND_S, check=False)


def run_python(example: str, *arguments: str | Path, folder: Path, env: dict[str, str] | None = None) -> list[str]:
    """Run an example that exits successfully; return its output lines."""
    done = run(sys.executable, EXAMPLES / example, *arguments, folder=folder, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@dataclass(slots=True)
class Running:
    """An example that runs until it is stopped."""

    process: subprocess.Popen[bytes]
    output: Path

    def prints(self, count: int) -> list[str]:
        """Its output lines, once there are `count`."""

        def lines() -> list[str] | None:
            assert self.process.poll() is None, self.output.read_text()
            found = self.output.read_text().splitlines()
            return found if len(found) >= count else None

        return wait_until(lines, within_s=BOUND_S, what=f"{count} lines in {self.output}") or []


@contextmanager
def running(example: str, *arguments: str, folder: Path, env: dict[str, str]) -> Iterator[Running]:
    """Run an example for the duration of the block."""
    output = folder / f"{example}.out"
    with output.open("wb") as out:
        command = [sys.executable, str(EXAMPLES / example), *arguments]
        process = subprocess.Popen(command, cwd=folder, env={**os.environ, **env}, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield Running(process, output)
    finally:
        process.terminate()
        process.wait(BOUND_S)
