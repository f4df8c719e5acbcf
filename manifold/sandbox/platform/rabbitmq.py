"""RabbitMQ for the sandbox: its own node on loopback, with its own ports, cookie, folders and epmd.

By default Erlang's port mapper, epmd, is shared by all nodes of the machine, and outlives them. Here epmd is a separate program
for this node alone. It listens on the port after AMQP's; the next port is for Erlang distribution.
"""

import base64
import hashlib
import json
import os
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from manifold.contracts.errors import Permanent
from manifold.contracts.signals import rights
from manifold.contracts.tls import INNER_CA, SERVER
from manifold.messaging.amqp import USER, password_file
from manifold.runtime import secret_files
from manifold.runtime.secret_files import get_or_create
from manifold.sandbox.platform.installed import path_of
from manifold.settings import Settings

DEBIAN = Path("/usr/lib/rabbitmq/lib")
NODE = "manifold@localhost"
MEMORY_BYTES = 512 << 20  # above this, RabbitMQ blocks publishers
DISK_FREE_BYTES = 64 << 20  # below this, RabbitMQ blocks publishers
MAX_MESSAGE_BYTES = 3 << 20  # RabbitMQ closes the channel that publishes a larger message; a processed signal may have 2.4 MiB
EPMD_WAIT_S = 30.0
NO_BUSY_WAITING = "+sbwt none +sbwtdcpu none +sbwtdio none"  # by default Erlang busy-waits on the shared cores


def server_script() -> Path | None:
    """Return the script that runs a node as the current user; None if RabbitMQ is not installed.

    Debian's script on the PATH cannot be used, because it switches to the user `rabbitmq`.
    """
    if debian_scripts := sorted(DEBIAN.glob("rabbitmq_server-*/sbin/rabbitmq-server")):
        return debian_scripts[-1]
    if DEBIAN.exists():
        return None  # the package is incomplete, and its script on the PATH must not be used
    script = shutil.which("rabbitmq-server")
    return Path(script).resolve() if script else None


def folder(settings: Settings) -> Path:
    """Return the folder of the node's files."""
    return settings.home / "rabbitmq"


def epmd_port(settings: Settings) -> int:
    """Return the port of the node's own epmd."""
    return settings.amqp_port + 1


def distribution_port(settings: Settings) -> int:
    """Return the port for other Erlang nodes, such as rabbitmqctl."""
    return settings.amqp_port + 2


def epmd_command(settings: Settings) -> list[str]:
    """Return the command of the node's own epmd, to run in the foreground.

    Raises:
        Permanent: Erlang is not installed.
    """
    remedy = "install RabbitMQ, which needs it (Debian: apt-get install rabbitmq-server)"
    binary = path_of("epmd", remedy=remedy, folders=("/usr/lib/erlang/bin", "/usr/local/lib/erlang/bin"))
    return [binary, "-port", str(epmd_port(settings)), "-address", settings.loopback]


def command(settings: Settings) -> list[str]:
    """Write the configuration, and return the command that waits for epmd and then runs the node in the foreground.

    Raises:
        Permanent: RabbitMQ is not installed.
    """
    script = server_script()
    if script is None:
        raise Permanent("rabbitmq-server is not installed (Debian: apt-get install rabbitmq-server), or set with_signals=false")
    _write_files(settings)
    variables = [f"PYTHONPATH={Path(__file__).parents[3]}"]  # for the module below, which waits for epmd
    variables += [f"{name}={value}" for name, value in environment(settings).items()]
    wait_for_epmd = [sys.executable, "-m", "manifold.sandbox.platform.rabbitmq", settings.loopback, str(epmd_port(settings))]
    return ["/usr/bin/env", *variables, *wait_for_epmd, str(script)]


def environment(settings: Settings) -> dict[str, str]:
    """Return the environment variables that confine the node and rabbitmqctl to this home. They contain no secrets."""
    home = folder(settings)
    return {
        "HOME": str(home),  # for .erlang.cookie
        "ERL_EPMD_PORT": str(epmd_port(settings)),
        "ERL_EPMD_ADDRESS": settings.loopback,
        "RABBITMQ_NODENAME": NODE,
        "RABBITMQ_DIST_PORT": str(distribution_port(settings)),
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "advanced.config"),
        "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(home / "config"),
        "RABBITMQ_PID_FILE": str(home / "rabbitmq.pid"),
        "ERL_CRASH_DUMP": str(home / "erl_crash.dump"),  # by default in the working directory
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{NO_BUSY_WAITING} -kernel inet_dist_use_interface {{127,0,0,1}}",
        "RUNNING_UNDER_SYSTEMD": "true",  # makes the script exec the node instead of waiting for it
    }


def _write_files(settings: Settings) -> None:
    """Write the node's cookie, unless it exists, and its plugins, users and configuration."""
    home = folder(settings)
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    cookie = home / ".erlang.cookie"
    if not cookie.exists():
        _write(cookie, secrets.token_hex(20), 0o400)
    plugins = "rabbitmq_consistent_hash_exchange" if settings.signals_partitions else ""
    _write(home / "enabled_plugins", f"[{plugins}].\n", 0o600)
    passwords = {user: get_or_create(settings.home, password_file(user)) for user in (USER, *rights.RIGHTS)}
    _write(home / "definitions.json", json.dumps(_definitions(passwords)), 0o600)
    _write(home / "rabbitmq.conf", _config(settings), 0o600)


def _write(file: Path, text: str, mode: int) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as out:
        out.write(text)


def _config(settings: Settings) -> str:
    return f"""\
# Written by Manifold at each start; edits are lost.
{_listener(settings)}
load_definitions = {folder(settings) / "definitions.json"}
max_message_size = {MAX_MESSAGE_BYTES}
vm_memory_high_watermark.absolute = {MEMORY_BYTES}
disk_free_limit.absolute = {DISK_FREE_BYTES}
log.file = false
log.console = true
log.console.level = warning
"""


def _listener(settings: Settings) -> str:
    """Return the lines of the configuration about the AMQP listener; with TLS it requires client certificates."""
    address = f"{settings.loopback}:{settings.amqp_port}"
    if not settings.tls:
        return f"listeners.tcp.1 = {address}"
    secrets_folder = secret_files.folder(settings.home)
    return f"""\
listeners.tcp = none
listeners.ssl.1 = {address}
ssl_options.cacertfile = {secrets_folder / INNER_CA}
ssl_options.certfile = {secrets_folder / SERVER}
ssl_options.keyfile = {secrets_folder / SERVER}
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
ssl_options.versions.1 = tlsv1.3
ssl_options.versions.2 = tlsv1.2"""


def _definitions(passwords: Mapping[str, str]) -> dict[str, object]:
    """Return the users with these passwords, and their rights: all for the administrator `USER`, only its own for each service.

    RabbitMQ imports them at each start, and then has no `guest`.
    """
    users = [_user(name, password) for name, password in passwords.items()]
    all_rights = {"user": USER, "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    service_rights = rights.permissions()
    return {
        "users": users,
        "vhosts": [{"name": "/"}],
        "permissions": [all_rights, *service_rights["permissions"]],
        "topic_permissions": service_rights["topic_permissions"],
    }


def _user(name: str, password: str) -> dict[str, str]:
    """Return a user's definition; RabbitMQ's hash is the base64 of a salt of 4 bytes and the SHA-256 of salt and password."""
    salt = secrets.token_bytes(4)
    digest = base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()
    return {"name": name, "password_hash": digest, "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": ""}


def main() -> None:
    """Wait until epmd listens, and exec the node. Without epmd, the node would start another one, which nobody would end."""
    host, port, *script = sys.argv[1:]
    if not _wait_for_port(host, int(port), EPMD_WAIT_S):
        sys.exit(f"epmd does not listen on {host}:{port}")
    os.execv(script[0], script)  # noqa: S606  # replacing this process is the purpose


def _wait_for_port(host: str, port: int, within_s: float) -> bool:
    """Wait up to `within_s` seconds until a process listens on the port; return whether one does."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, port), 1).close()
            return True
        except OSError:
            time.sleep(0.02)
    return False


if __name__ == "__main__":
    main()
