"""What secrets.sh and certificates.sh make up for an environment, kept in a folder where a cluster would keep it."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.infra.environments import TERRAFORM

NAMESPACE = "manifold"
KUBECTL = Path(__file__).with_name("kubectl.py")


@dataclass(frozen=True, slots=True)
class Made:
    """The Secrets, and the scripts that make them."""

    folder: Path

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One of the two, with `kubectl` in front of that folder; whether it succeeded is for the caller to look at."""
        env = {"PATH": f"{self.folder}/bin:{os.defpath}", "KEPT": str(self.folder)}
        command = [str(TERRAFORM / script), NAMESPACE, *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)

    def secret(self, name: str) -> dict[str, str]:
        """What a Secret holds, by key."""
        found: dict[str, str] = json.loads((self.folder / f"{name}.json").read_text())
        return found

    def keep(self, name: str, keys: dict[str, str]) -> None:
        """Put other keys into a Secret, as an operator would."""
        (self.folder / f"{name}.json").write_text(json.dumps(keys))

    def secrets(self) -> dict[str, dict[str, str]]:
        return {file.stem: self.secret(file.stem) for file in sorted(self.folder.glob("*.json"))}

    def called(self) -> str:
        """Every command line of kubectl."""
        return (self.folder / "called").read_text()

    def mount(self, name: str, folder: Path) -> Path:
        """The keys of a Secret as files, which only their owner may read; the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for key, value in self.secret(name).items():
            (folder / key).touch(mode=0o600)
            (folder / key).write_text(value)
        return folder


def made_up(folder: Path, *scripts: str) -> Made:
    """All that the scripts make up, in a cluster that had nothing."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "kubectl").symlink_to(KUBECTL)
    made = Made(folder)
    for script in scripts:
        ran = made.run(script)
        assert ran.returncode == 0, ran.stderr
    return made
