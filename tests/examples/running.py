"""How an example is run: from another folder and as its users do."""

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
    """What the examples with MQTT read from their environment."""
    return {"MQTT_HOST": settings.host, "MQTT_PORT": str(settings.mqtt_port)}


def run(*command: str | Path, folder: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    whole = {**os.environ, **(env or {})}
    return subprocess.run(command, cwd=folder, env=whole, capture_output=True, text=True, timeout=BOUND_S, check=False)


def run_python(example: str, *arguments: str | Path, folder: Path, env: dict[str, str] | None = None) -> list[str]:
    """The lines that an example prints, which ends well by itself."""
    done = run(sys.executable, EXAMPLES / example, *arguments, folder=folder, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@dataclass(slots=True)
class Running:
    """An example that runs until it is ended."""

    process: subprocess.Popen[bytes]
    output: Path

    def prints(self, count: int) -> list[str]:
        """Its lines, as soon as there are `count`."""

        def lines() -> list[str] | None:
            assert self.process.poll() is None, self.output.read_text()
            found = self.output.read_text().splitlines()
            return found if len(found) >= count else None

        return wait_until(lines, within_s=BOUND_S, what=f"{count} lines in {self.output}") or []


@contextmanager
def running(example: str, *arguments: str, folder: Path, env: dict[str, str]) -> Iterator[Running]:
    """An example that runs for as long as the block."""
    output = folder / f"{example}.out"
    with output.open("wb") as out:
        command = [sys.executable, str(EXAMPLES / example), *arguments]
        process = subprocess.Popen(command, cwd=folder, env={**os.environ, **env}, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield Running(process, output)
    finally:
        process.terminate()
        process.wait(BOUND_S)
