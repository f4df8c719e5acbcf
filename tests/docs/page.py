"""The commands of a page in docs/, with what the page says that they print."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

WITHIN_S = 600
NUMBER = "[0-9][0-9a-f,.:TZ-]*"  # an instant and most of a digest, too
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Step:
    """One command, which may have further lines, and its output as the page has it: `…` stands for what was left out."""

    command: str
    said: str

    def is_said_by(self, output: str) -> bool:
        """Whether the output is what the page says, but for numbers, instants, names of files, and how wide columns are."""
        return re.fullmatch(_pattern(self.said), " ".join(output.split())) is not None


def steps(page: str) -> list[Step]:
    """All commands of the page's console blocks, in order: lines that begin with `$ `, and with `> ` where they go on."""
    found: list[Step] = []
    for block in BLOCK.findall(page):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            more = next((n for n, line in enumerate(lines[1:], 1) if not line.startswith("> ")), len(lines))
            command = "\n".join([lines[0], *(line[2:] for line in lines[1:more])])
            found.append(Step(command, "\n".join(lines[more:]).strip()))
    return found


def _pattern(said: str) -> str:
    return r"\s*".join(".*" if word == "…" else _word(word) for word in said.split())


def _word(word: str) -> str:
    return "".join(".*" if part == "…" else NUMBER if part[0].isdigit() else re.escape(part) for part in _parts(word))


def _parts(word: str) -> list[str]:
    return [part for part in re.split(f"(…|{NUMBER})", word) if part]


class Shell:
    """Runs one command after the other in one folder; what was started in the background ends with it."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder, self._env = folder, dict(env)
        self._groups: list[int] = []

    def run(self, command: str) -> str:
        """What it prints, standard error included."""
        with TemporaryFile("w+") as output:
            process = subprocess.Popen(
                ["/bin/bash", "-c", command],
                cwd=self._folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a group of its own, with what it leaves in the background
            )
            self._groups.append(process.pid)
            process.wait(WITHIN_S)
            output.seek(0)
            return output.read()

    def close(self) -> None:
        """End what was left in the background."""
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)


def environment(ports: Mapping[str, int]) -> dict[str, str]:
    """That of somebody with a fresh shell in a fresh clone, on other ports than usual."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MANIFOLD_", "AIRFLOW"))}
    tools = f"{Path(sys.executable).parent}{os.pathsep}{clean.get('PATH', os.defpath)}{os.pathsep}/usr/sbin"
    return clean | {f"MANIFOLD_{name.upper()}": str(port) for name, port in ports.items()} | {"PATH": tools, "COLUMNS": "160"}
