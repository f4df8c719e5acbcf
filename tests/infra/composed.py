"""Start the services of compose.yml with Podman as Compose would: same options, order, secrets and health checks.

podman-compose does not wait for health on Podman 4, and server images need a registry. So the container definitions in the file
are translated to Podman here, and the servers come from Debian packages in a test image. All containers share a private network.
"""

import json
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.infra.containers import IMAGE, podman
from tests.support.servers import ROOT

HERE = ROOT / "infra" / "compose"
SERVERS = "localhost/manifold-servers:test"
GATEWAY = ROOT / ".tools" / "stores" / "versitygw"
Service = dict[str, Any]

# What the images of these servers run before the command in compose.yml, or by default.
POSTGRES = """
cd /tmp
initdb -D $PGDATA -E UTF8 --locale=C.UTF-8 -U postgres --pwfile=$POSTGRES_PASSWORD_FILE \\
  -A scram-sha-256 --auth-local=trust >/dev/null
pg_ctl -D $PGDATA -o '-c listen_addresses=' -w start >/dev/null
sh /docker-entrypoint-initdb.d/databases.sh
pg_ctl -D $PGDATA -w stop >/dev/null
exec postgres -D $PGDATA -c listen_addresses='*'
"""
COMMANDS: Mapping[str, list[str]] = {"postgres": ["sh", "-euc", POSTGRES], "rabbitmq": ["rabbitmq-server"]}
VARIABLES = {"postgres": {"PGDATA": "/var/lib/postgresql/data/db"}}
USERS = {"object-store": "999:999"}  # the owner of /data in the test image; the original image uses root


@dataclass(slots=True)
class Composed:
    """The running services."""

    name: str
    folder: Path  # a copy of infra with generated secrets
    services: Mapping[str, Service]
    overrides: Mapping[str, str]
    running: list[str] = field(default_factory=list)

    def container(self, service: str) -> str:
        return f"{self.name}-{service}"

    def start(self, service: str) -> None:
        """Start a service in the background."""
        self._run(service, ["--detach", f"--name={self.container(service)}"])
        self.running.append(service)

    def start_beside(self, name: str, image: str, *command: str, how: Sequence[str] = ()) -> None:
        """Start a container that compose.yml lacks in the same network."""
        options = ["--detach", f"--name={self.container(name)}", f"--network=container:{self.name}", "--no-hosts"]
        podman("run", *options, f"--volume={self.folder}/hosts:/etc/hosts:ro", *how, image, *command)
        self.running.append(name)

    def run(self, service: str) -> str:
        """Run a service that ends by itself; return its output."""
        return self._run(service, ["--rm"])

    def ask(self, service: str, *command: str, check: bool = True) -> str:
        """Run a command in a service's container; return its standard output."""
        return podman("exec", self.container(service), *command, check=check, timeout=400).stdout

    def is_healthy(self, service: str) -> bool:
        """Run its health check once."""
        kind, *command = self.services[service]["healthcheck"]["test"]
        asked = ["sh", "-c", *command] if kind == "CMD-SHELL" else command
        return podman("exec", self.container(service), *asked, check=False).returncode == 0

    def log(self, service: str) -> str:
        """Its log."""
        said = podman("logs", "--tail=40", self.container(service), check=False)
        return said.stdout + said.stderr

    def wait_healthy(self, service: str, within_s: float = 180) -> None:
        """Wait until it is healthy.

        Raises:
            AssertionError: it was not healthy in time; the message has its last output.
        """
        deadline = time.monotonic() + within_s
        while not self.is_healthy(service):
            assert time.monotonic() < deadline, f"{service} is not healthy: {self.log(service)}"
            time.sleep(0.5)  # between two checks, as Compose does

    def _run(self, service: str, how: list[str]) -> str:
        found = self.services[service]
        entry = found.get("entrypoint")
        image = IMAGE if "MANIFOLD_IMAGE" in found["image"] else SERVERS
        given = COMMANDS.get(service) or found.get("command", [])
        if entry:
            how, given = [*how, f"--entrypoint={json.dumps(entry[:1])}"], [*entry[1:], *given]
        options = [*how, f"--network=container:{self.name}", "--no-hosts", f"--volume={self.folder}/hosts:/etc/hosts:ro"]
        options += [f"--user={USERS[service]}"] if service in USERS else []
        options += self._held(found) + self._mounts(found) + self._environment(service, found)
        return podman("run", *options, image, *(str(part).replace("$$", "$") for part in given), timeout=600).stdout

    def _held(self, found: Service) -> list[str]:
        options = ["--read-only", "--read-only-tmpfs=false"] if found.get("read_only") else []
        options += [f"--cap-drop={each}" for each in found.get("cap_drop", [])]
        options += [f"--security-opt={each.removesuffix(':true')}" for each in found.get("security_opt", [])]
        options += [f"--user={found['user']}"] if "user" in found else []
        # Docker mounts them world-writable and noexec unless told otherwise.
        return options + [f"--tmpfs={_tmpfs(each)}" for each in found.get("tmpfs", [])]

    def _mounts(self, found: Service) -> list[str]:
        mounts: list[tuple[Path, str]] = []
        for secret in found.get("secrets", []):
            source, target = (secret, secret) if isinstance(secret, str) else (secret["source"], secret["target"])
            mounts.append((self.folder / "compose" / "secrets" / source, target if "/" in target else f"/run/secrets/{target}"))
        definitions = _compose()["configs"]
        configs = [(definitions[config["source"]]["file"], config["target"]) for config in found.get("configs", [])]
        mounts += [((self.folder / "compose" / file).resolve(), target) for file, target in configs]
        options = [f"--volume={source}:{target}:ro" for source, target in mounts]
        for volume in found.get("volumes", []):
            source, _, rest = volume.partition(":")
            where = (self.folder / "compose" / source).resolve() if source.startswith(".") else f"{self.name}-{source}"
            options.append(f"--volume={where}:{rest}")
        return options

    def _environment(self, service: str, found: Service) -> list[str]:
        variables = dict(found.get("environment", {})) | VARIABLES.get(service, {})
        variables |= {name: value for name, value in self.overrides.items() if name in variables}
        filled = {name: re.sub(r"\$\{[A-Z_]+:-(\w+)\}", r"\1", str(value)) for name, value in variables.items()}
        return [f"--env={name}={value}" for name, value in filled.items()]


@contextmanager
def composed(name: str, folder: Path, overrides: Mapping[str, str]) -> Iterator[Composed]:
    """A project without running services; its containers, volumes and network are removed after the block."""
    for room in ("compose", "emqx", "prometheus", "grafana", "rabbitmq", "redis"):
        shutil.copytree(ROOT / "infra" / room, folder / room, ignore=shutil.ignore_patterns("secrets", ".env"))
    services: dict[str, Service] = _compose()["services"]
    (folder / "hosts").write_text("127.0.0.1 localhost " + " ".join(services) + "\n")
    podman("run", "--detach", f"--name={name}", "--network=none", "--read-only", "--entrypoint=sleep", IMAGE, "infinity")
    made = Composed(name, folder, services, overrides)
    try:
        yield made
    finally:
        for service in reversed(made.running):
            podman("rm", "--force", "--time=5", made.container(service), check=False)
        podman("rm", "--force", "--time=0", name, check=False)
        volumes = podman("volume", "ls", "--quiet", f"--filter=name=^{name}-").stdout.split()
        for volume in volumes:
            podman("volume", "rm", "--force", volume, check=False)


def build_servers(folder: Path) -> None:
    """Build the image of the servers, or reuse it."""
    from tests.infra.test_dockerfile import arguments_of

    (base,) = (argument.removeprefix("BASE=") for argument in arguments_of("ARG") if argument.startswith("BASE="))
    shutil.copy(GATEWAY, folder / "versitygw")
    file = str(Path(__file__).parent / "servers.Dockerfile")
    podman(
        "build",
        "--layers",
        "--network=host",
        f"--build-arg=BASE={base}",
        f"--tag={SERVERS}",
        f"--file={file}",
        str(folder),
        timeout=900,
    )


def _compose() -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(HERE / "compose.yml")
    return found


def _tmpfs(said: str) -> str:
    place, _, options = said.partition(":")
    return f"{place}:rw,{'exec' if 'exec' in options.split(',') else 'noexec'},mode=1777"
