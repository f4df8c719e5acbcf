"""The programs of the embedded platform: their commands, ports and health checks."""

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

SERVERS, SERVICES = "servers", "services"  # groups; services are stopped first, because they need the servers to stop cleanly


@dataclass(frozen=True, slots=True)
class Program:
    """One program under the supervisor. Replicas of a program have the same `kind`, but different names."""

    name: str
    kind: str
    group: str
    ports: tuple[Port, ...]
    stop_s: int  # grace period after SIGTERM
    health: str | None = None  # URL that answers 200 if healthy; None: connect to the port, or look whether the process runs

    @property
    def log_name(self) -> str:
        """Name of the program's file in the log folder."""
        return f"{self.name}.log"


def programs(settings: Settings) -> list[Program]:
    """Return the programs to start with these settings. Servers that a URL setting locates elsewhere are not among them."""
    found = []
    if not settings.mqtt_url:
        # With TLS the broker listens on sockets only, and services have a port of their own.
        broker_ports = () if settings.tls else (Port("broker_port", settings.broker_port),)
        found.append(Program("broker", "broker", SERVERS, broker_ports, 10))
        tap_ports = [Port("mqtt_port", settings.mqtt_port), Port("tap_port", settings.tap_port)]
        if settings.tls:
            tap_ports.append(Port("mqtt_services_port", settings.mqtt_services_port))
        found.append(Program("tap", "tap", SERVERS, tuple(tap_ports), 10, _healthz(settings, settings.tap_port)))
    if not settings.redis_url.get_secret_value():
        found.append(Program("redis", "redis", SERVERS, (Port("redis_port", settings.redis_port),), 30))
    if settings.tls:  # the keeper renews certificates
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
    """Return the AMQP door, and unless a URL setting locates RabbitMQ elsewhere, RabbitMQ and its epmd.

    Empty if RabbitMQ would have to be started, but is not installed.
    """
    found = []
    if not settings.signals_amqp_url.get_secret_value():
        if rabbitmq.server_script() is None:
            return []
        # All three ports follow from the setting amqp_port.
        epmd_port = Port("amqp_port", rabbitmq.epmd_port(settings))
        distribution_port = Port("amqp_port", rabbitmq.distribution_port(settings))
        amqp_port = Port("amqp_port", settings.amqp_port)
        found.append(Program("epmd", "epmd", SERVERS, (epmd_port,), 5))
        found.append(Program("rabbitmq", "rabbitmq", SERVERS, (amqp_port, distribution_port), 30))
    port = Port("signals_port", settings.signals_port)
    return [*found, Program("signals", "signals", SERVICES, (port,), 30, _healthz(settings, port.number))]


MODULES = {"tap": "manifold.sandbox.tap", "campaigner": "manifold.campaigns"} | {
    name: f"manifold.{name}" for name in ("recorder", "signals", "api")
}


def command(program: Program, settings: Settings) -> list[str]:
    """Write the program's configuration, and return the command that runs the program in the foreground.

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
    """Return the user as which a program connects to Redis and RabbitMQ with TLS.

    Airflow's tasks connect as `jobs`, and programs that are no service of their own, such as the keeper, as the operator.
    """
    user = "jobs" if program.kind == "airflow" else program.kind
    services: tuple[Service, ...] = get_args(Service)
    for service in services:
        if service == user:
            return service
    return OPERATOR


def environment(settings: Settings) -> dict[str, str]:
    """Return the environment of every child: a variable for each setting, and a PATH with this Python's and the system's folders.

    Since all settings are set explicitly, a settings file in the child's working directory has no effect.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith(PREFIX)}
    setting_variables = {PREFIX + name.upper(): _env_value(getattr(settings, name)) for name in type(settings).model_fields}
    folders = [
        str(Path(sys.executable).parent),
        *inherited.get("PATH", os.defpath).split(os.pathsep),
        "/usr/sbin",
        "/usr/local/sbin",
    ]
    path = os.pathsep.join(dict.fromkeys(folders))
    return inherited | setting_variables | {"PATH": path, "PYTHONUNBUFFERED": "1"}


def _env_value(value: Any) -> str:
    """Return a setting's value as text, in the form that settings are read from environment variables."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _healthz(settings: Settings, port: int) -> str:
    return f"{settings.http(port)}/healthz"


def _redis_command(settings: Settings) -> list[str]:
    """Return Redis's command. Redis fsyncs every second; when its memory is full, it rejects writes instead of evicting keys."""
    binary = path_of("redis-server", remedy="install it (Debian: apt-get install redis-server)")
    folder = settings.home / "redis"
    folder.mkdir(parents=True, exist_ok=True)
    options: dict[str, object] = {
        "bind": settings.loopback,  # without TLS there is no password
        "port": settings.redis_port,
        "dir": folder,
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",  # no snapshots
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    if settings.tls:
        secrets = secret_files.folder(settings.home)
        options |= {
            "port": 0,
            "tls-port": settings.redis_port,
            "tls-auth-clients": "yes",
            "tls-ca-cert-file": secrets / INNER_CA,
            "tls-cert-file": secrets / SERVER,
            "tls-key-file": secrets / SERVER,
            "aclfile": redis_users.write(settings),
        }
    arguments = []
    for name, value in options.items():
        arguments += [f"--{name}", str(value)]
    return [binary, *arguments]
