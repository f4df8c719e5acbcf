"""Containers of the image, run with Podman as in an environment: read-only, unprivileged, without capabilities."""

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
    """Run podman and return its output."""
    ran = subprocess.run(["podman", *arguments], capture_output=True, text=True, env=ENV, timeout=timeout)
    assert not check or ran.returncode == 0, f"podman {' '.join(arguments)}: {ran.stdout}{ran.stderr}"
    return ran


def missing() -> str:
    """Why these tests cannot run; empty if they can."""
    if shutil.which("podman") is None:
        return "podman is not installed; make image brings it"
    return "" if podman("image", "exists", IMAGE, check=False).returncode == 0 else f"no image {IMAGE}; make image builds it"


def run_once(
    *command: str, env: Mapping[str, str] | None = None, mounts: Sequence[str] = (), check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a container that ends by itself; return its output."""
    return podman("run", "--rm", *HELD, *_variables(env or {}), *mounts, IMAGE, *command, check=check)


@dataclass(frozen=True, slots=True)
class Container:
    """A running container."""

    name: str

    def is_healthy(self) -> bool:
        """Run the image's health check now: without systemd nothing runs it periodically."""
        return podman("healthcheck", "run", self.name, check=False, timeout=60).returncode == 0

    def log(self) -> str:
        """Its log."""
        said = podman("logs", self.name, check=False)
        return said.stdout + said.stderr

    def stop(self, within_s: int) -> int:
        """Send SIGTERM, then SIGKILL after a timeout; return its exit status."""
        podman("stop", f"--time={within_s}", self.name)
        return int(podman("inspect", "--format={{.State.ExitCode}}", self.name).stdout)


@contextmanager
def container(name: str, *command: str, env: Mapping[str, str], mounts: Sequence[str] = ()) -> Iterator[Container]:
    """Run a container for the duration of the block and remove it afterwards."""
    podman("run", "--detach", f"--name={name}", *HELD, *_variables(env), *mounts, IMAGE, *command)
    try:
        yield Container(name)
    finally:
        podman("rm", "--force", "--volumes", "--time=0", name, check=False)


def folder_of(path: Path) -> Path:
    """A folder owned by the image's user."""
    path.mkdir(parents=True)
    os.chown(path, USER, USER)
    return path


def _variables(env: Mapping[str, str]) -> list[str]:
    return [f"--env={name}={value}" for name, value in env.items()]
