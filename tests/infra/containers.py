"""Containers of the image, run with Podman as an environment would run them: read-only, as nobody, without a right."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import ROOT

IMAGE = os.environ.get("MANIFOLD_IMAGE", "localhost/manifold:dev")
USER = 10001
ENV = {"CONTAINERS_CONF": str(ROOT / "infra" / "image" / "containers.conf")} | os.environ
HELD = (
    "--network=host",
    "--read-only",
    "--read-only-tmpfs=false",
    "--cap-drop=all",
    "--security-opt=no-new-privileges",
    "--tmpfs=/tmp:rw,exec,mode=1777",
)


def podman(*arguments: str, check: bool = True, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run podman; its output."""
    ran = subprocess.run(["podman", *arguments], capture_output=True, text=True, env=ENV, timeout=timeout)
    assert not check or ran.returncode == 0, f"podman {' '.join(arguments)}: {ran.stdout}{ran.stderr}"
    return ran


def missing() -> str:
    """Why there is nothing to try; empty where there is."""
    if shutil.which("podman") is None:
        return "podman is not installed; make image brings it"
    return "" if podman("image", "exists", IMAGE, check=False).returncode == 0 else f"no image {IMAGE}; make image builds it"


def run_once(
    *command: str, env: Mapping[str, str] | None = None, mounts: Sequence[str] = (), check: bool = True
) -> subprocess.CompletedProcess[str]:
    """A container that ends by itself; its output."""
    return podman("run", "--rm", *HELD, *_variables(env or {}), *mounts, IMAGE, *command, check=check)


@dataclass(frozen=True, slots=True)
class Container:
    """One that runs."""

    name: str

    def is_healthy(self) -> bool:
        """Whether the image's own health check says so, asked now: without systemd nobody asks it by the clock."""
        return podman("healthcheck", "run", self.name, check=False, timeout=60).returncode == 0

    def log(self) -> str:
        """What it has said."""
        said = podman("logs", self.name, check=False)
        return said.stdout + said.stderr

    def stop(self, within_s: int) -> int:
        """SIGTERM, and SIGKILL after so long; its exit status."""
        podman("stop", f"--time={within_s}", self.name)
        return int(podman("inspect", "--format={{.State.ExitCode}}", self.name).stdout)


@contextmanager
def container(name: str, *command: str, env: Mapping[str, str], mounts: Sequence[str] = ()) -> Iterator[Container]:
    """A container that runs until the end of the block; nothing of it is left then."""
    podman("run", "--detach", f"--name={name}", *HELD, *_variables(env), *mounts, IMAGE, *command)
    try:
        yield Container(name)
    finally:
        podman("rm", "--force", "--volumes", "--time=0", name, check=False)


def folder_of(path: Path) -> Path:
    """A folder that the image's user owns."""
    path.mkdir(parents=True)
    os.chown(path, USER, USER)
    return path


def _variables(env: Mapping[str, str]) -> list[str]:
    return [f"--env={name}={value}" for name, value in env.items()]
