"""The output of secrets.sh and certificates.sh, kept in a folder instead of a cluster."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.infra.environments import TERRAFORM

NAMESPACE = "manifold"
KUBECTL = Path(__file__).with_name("kubectl.sh")


@dataclass(frozen=True, slots=True)
class Made:
    """The Secrets and the scripts that generate them."""

    folder: Path

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a script with the kubectl replacement; the caller checks its exit status."""
        env = {"PATH": f"{self.folder}/bin:{os.defpath}", "KEPT": str(self.folder)}
        command = [str(TERRAFORM / script), NAMESPACE, *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)

    def secret(self, name: str) -> dict[str, str]:
        """The content of a Secret by key."""
        return {file.name: file.read_text() for file in (self.folder / "secrets" / name).iterdir()}

    def keep(self, name: str, keys: dict[str, str]) -> None:
        """Replace keys of a Secret, as an operator would."""
        for key, value in keys.items():
            (self.folder / "secrets" / name / key).write_text(value)

    def secrets(self) -> dict[str, dict[str, str]]:
        return {folder.name: self.secret(folder.name) for folder in sorted((self.folder / "secrets").iterdir())}

    def called(self) -> str:
        """Every command line of kubectl."""
        return (self.folder / "called").read_text()

    def mount(self, name: str, folder: Path) -> Path:
        """Write the keys of a Secret as files readable only by their owner; return the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for key, value in self.secret(name).items():
            (folder / key).touch(mode=0o600)
            (folder / key).write_text(value)
        return folder


def made_up(folder: Path, *scripts: str) -> Made:
    """Everything that the scripts generate in an empty cluster."""
    (folder / "bin").mkdir(parents=True)
    (folder / "secrets").mkdir()
    (folder / "bin" / "kubectl").symlink_to(KUBECTL)
    made = Made(folder)
    for script in scripts:
        ran = made.run(script)
        assert ran.returncode == 0, ran.stderr
    return made
