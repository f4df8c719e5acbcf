"""The programs of the embedded platform: how they start, where they listen, and when they are healthy."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import SecretStr

from manifold.contracts.tls import INNER_CA, OPERATOR, SERVER, Service
from manifold.runtime import secret_files
from manifold.sandbox.platform import airflow, broker, rabbitmq, redis_users
from manifold.sandbox.platform.installed import path_of
from manifold.sandbox.platform.ports import Port
from manifold.settings import PREFIX, Settings

SERVERS, SERVICES = "servers", "services"  # services are stopped first, because they need the servers to shut down cleanly


@dataclass(frozen=True, slots=True)
class Program:
    """One program under the supervisor. `kind` is its key in the status; `name` also distinguishes replicas."""

    name: str
    kind: str
    group: str
    ports: tuple[Port, ...]
    stop_s: int  # grace period after SIGTERM
    health: str | None = None  # URL that answers 200 if healthy; None: checked by connecting, or by its process

    @property
    def log_name(self) -> str:
        """Its file in the log folder."""
        return f"{self.name}.log"


def programs(settings: Settings) -> list[Program]:
    """Return the programs for these settings. A server that a URL setting places elsewhere is not started here."""
    found = []
    if not settings.mqtt_url:
        of_broker = () if settings.tls else (Port("broker_port", settings.broker_port),)  # with TLS it listens on a socket only
        found.append(Program("broker", "broker", SERVERS, of_broker, 10))
        ports = [Port("mqtt_port", settings.mqtt_port), Port("tap_port", settings.tap_port)]
        ports += [Port("mqtt_services_port", settings.mqtt_services_port)] if settings.tls else []
        found.append(Program("tap", "tap", SERVERS, tuple(ports), 10, _healthz(settings, settings.tap_port)))
    if not settings.redis_url.get_secret_value():
        found.append(Program("redis", "redis", SERVERS, (Port("redis_port", settings.redis_port),), 30))
    if settings.tls:
        found.append(Program("keeper", "keeper", SERVICES, (), 5))
    port = Port("recorder_port", settings.recorder_port)
    found.append(Program("recorder", "recorder", SERVICES, (port,), 30, _healthz(settings, port.number)))
    for replica in range(settings.dispatchers):
        port = Port("dispatcher_port", settings.dispatcher_port + replica, replica)
        name = f"dispatcher-{replica}"
        found.append(Program(name, "dispatcher", SERVICES, (port,), 15, _healthz(settings, port.number)))
    if settings.with_signals:
        found += _signals(settings)
    if settings.with_campaigns:
        port = Port("campaigner_port", settings.campaigner_port)
        found.append(Program("campaigner", "campaigner", SERVICES, (port,), 15, _healthz(settings, port.number)))
    if not settings.api_url:
        port = Port("api_port", settings.api_port)
        found.append(Program("api", "api", SERVICES, (port,), 15, f"{settings.api}/healthz"))
    if settings.with_airflow:
        port = Port("airflow_port", settings.airflow_port)
        found.append(Program("airflow", "airflow", SERVICES, (port,), 30, f"{airflow.url(settings)}{airflow.HEALTH}"))
    return found


def _signals(settings: Settings) -> list[Program]:
    """Return the AMQP door, and RabbitMQ with epmd unless a setting places it elsewhere; empty if it is not installed."""
    found = []
    if not settings.signals_amqp_url.get_secret_value():
        if rabbitmq.server_script() is None:
            return []
        of_erlang = Port("amqp_port", rabbitmq.epmd_port(settings)), Port("amqp_port", rabbitmq.distribution_port(settings))
        found.append(Program("epmd", "epmd", SERVERS, of_erlang[:1], 5))
        found.append(Program("rabbitmq", "rabbitmq", SERVERS, (Port("amqp_port", settings.amqp_port), of_erlang[1]), 30))
    port = Port("signals_port", settings.signals_port)
    return [*found, Program("signals", "signals", SERVICES, (port,), 30, _healthz(settings, port.number))]


MODULES = {"tap": "manifold.sandbox.tap", "campaigner": "manifold.campaigns"} | {
    name: f"manifold.{name}" for name in ("recorder", "signals", "api")
}


def command(program: Program, settings: Settings) -> list[str]:
    """Return the command to run in the foreground. Writes the program's configuration.

    Raises:
        Permanent: a server is not installed.
    """
    match program.kind:
        case "broker":
            return broker.command(settings)
        case "redis":
            return _redis_command(settings)
        case "epmd":
            return rabbitmq.epmd_command(settings)
        case "rabbitmq":
            return rabbitmq.command(settings)
        case "airflow":
            return [sys.executable, "-m", "manifold.sandbox.platform.airflow"]
        case "keeper":
            return [sys.executable, "-m", "manifold.sandbox.platform.cert_renewer"]
        case "dispatcher":
            return [sys.executable, "-m", "dispatcher", "--replica", program.name.rpartition("-")[2]]
        case _:
            return [sys.executable, "-m", MODULES[program.kind]]


def identity_of(program: Program) -> Service:
    """Return a program's user at Redis and RabbitMQ with TLS; Airflow's tasks are `jobs`."""
    who = "jobs" if program.kind == "airflow" else program.kind
    known: tuple[Service, ...] = get_args(Service)
    return next((service for service in known if service == who), OPERATOR)


def environment(settings: Settings) -> dict[str, str]:
    """Return the environment of every child: each effective setting as its variable, and our tools on the PATH.

    As all settings are explicit, a settings file in the child's working directory has no effect.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith(PREFIX)}
    spelled = {PREFIX + name.upper(): _env_value(getattr(settings, name)) for name in type(settings).model_fields}
    folders = [
        str(Path(sys.executable).parent),
        *inherited.get("PATH", os.defpath).split(os.pathsep),
        "/usr/sbin",
        "/usr/local/sbin",
    ]
    return inherited | spelled | {"PATH": os.pathsep.join(dict.fromkeys(folders)), "PYTHONUNBUFFERED": "1"}


def _env_value(value: Any) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _healthz(settings: Settings, port: int) -> str:
    return f"{settings.http(port)}/healthz"


def _redis_command(settings: Settings) -> list[str]:
    """Return Redis's command: it fsyncs every second, and rejects writes rather than evict when memory is short."""
    binary = path_of("redis-server", install="it (Debian: apt-get install redis-server)")
    folder = settings.home / "redis"
    folder.mkdir(parents=True, exist_ok=True)
    options: dict[str, object] = {
        "bind": settings.loopback,  # without TLS there is no password
        "port": settings.redis_port,
        "dir": folder,
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    if settings.tls:
        secrets = secret_files.folder(settings.home)
        options |= {"port": 0, "tls-port": settings.redis_port, "tls-auth-clients": "yes", "tls-ca-cert-file": secrets / INNER_CA}
        options |= dict.fromkeys(("tls-cert-file", "tls-key-file"), secrets / SERVER)
        options["aclfile"] = redis_users.write(settings)
    return [binary, *(str(part) for name, value in options.items() for part in (f"--{name}", value))]
