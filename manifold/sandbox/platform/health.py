"""The health of the embedded platform: queries every program, and whether the queues are loaded. Read only."""

import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import redis

from manifold.contracts import keys
from manifold.contracts.errors import message_of
from manifold.contracts.redis_url import split_redis_url
from manifold.runtime.redis import connect
from manifold.runtime.tls import verified
from manifold.sandbox.platform import airflow
from manifold.sandbox.platform.addresses import Addresses
from manifold.sandbox.platform.programs import Program, programs
from manifold.sandbox.platform.supervisord import HomeLayout, ProgramState, states
from manifold.settings import Settings
from manifold.settings.embedded_broker import outer_socket

REBUILD_NEEDED = "rebuild needed"
KINDS = ("broker", "tap", "redis", "recorder", "dispatcher", "campaigner", "airflow", "api", "rabbitmq", "epmd", "signals")
KEEPER = "keeper"  # the certificate renewer; `Status.processes` has it only with TLS
_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Check:
    """Whether one program is ready to serve, and its details (JSON values)."""

    healthy: bool
    reason: str = ""  # why the program is not healthy; empty if it is
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Status:
    """The status of the platform. `healthy` means ready to serve."""

    healthy: bool
    addresses: Addresses
    queues: str  # `loaded`, `rebuild needed`, or `unknown` without Redis
    processes: Mapping[str, Sequence[int]]  # kind → pids
    checks: Mapping[str, Check]  # program → health
    states: Mapping[str, ProgramState]  # program → supervisor state; empty if the supervisor is not running

    @property
    def running(self) -> bool:
        """Whether any process of the platform is running."""
        return any(self.processes.values())

    def to_json(self) -> dict[str, Any]:
        """Return the JSON for `manifold status --json`."""
        return {
            "healthy": self.healthy,
            **self.addresses.to_json(),
            "processes": {kind: list(pids) for kind, pids in self.processes.items()},
            "queues": self.queues,
            "health": {name: self._health_of(name, result) for name, result in self.checks.items()},
        }

    def _health_of(self, name: str, result: Check) -> dict[str, Any]:
        program_state = self.states.get(name)
        state = {"state": program_state.state} if program_state else {}
        return {"healthy": result.healthy, "reason": result.reason, **state, **result.details}


def as_started(settings: Settings) -> Settings:
    """Return the settings with those values of `with_airflow`, `with_signals` and `with_campaigns` that the running platform has.

    So the caller expects only the programs that were started. If no platform is running, returns the settings unchanged.
    """
    layout = HomeLayout(settings.home)
    if not layout.supervisor():
        return settings
    running = layout.started_with()
    names = ("with_airflow", "with_signals", "with_campaigns")
    return settings.model_copy(update={name: running.get(name, getattr(settings, name)) for name in names})


def status(settings: Settings) -> Status:
    """Return the platform's status, even if nothing is running. Programs that were not to be started do not count."""
    layout = HomeLayout(settings.home)
    settings = as_started(settings)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(_queue_state, settings)
        checks = check(programs(settings), settings)
    queues = future.result()
    return Status(
        healthy=queues == "loaded" and all(result.healthy for result in checks.values()),
        addresses=Addresses.of(settings),
        queues=queues,
        processes=pids(layout),
        checks=checks,
        states=states(layout) if layout.supervisor() else {},
    )


def check(wanted: Sequence[Program], settings: Settings) -> dict[str, Check]:
    """Check all programs concurrently, and return the health of each, by name."""
    with ThreadPoolExecutor(max(1, len(wanted))) as pool:
        futures = {program.name: pool.submit(_check, program, settings) for program in wanted}
        return {name: future.result() for name, future in futures.items()}


def pids(layout: HomeLayout) -> dict[str, list[int]]:
    """Return the pids of the recorded processes that are running, by kind of program."""
    running: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for name, record in layout.recorded().items():
        kind = name.partition("-")[0]  # `dispatcher-0` is a dispatcher
        if kind in (*KINDS, KEEPER) and record.process():  # the supervisor's record does not count
            running.setdefault(kind, []).append(record.pid)
    return running


def _check(program: Program, settings: Settings) -> Check:
    """Check a program by its health URL; if it has none, by a query, its port, its socket, or whether its process runs."""
    if program.kind == "redis":
        return _check_redis(settings)
    if program.kind == "broker" and settings.tls:
        return _check_socket(str(outer_socket(settings)))
    if program.health is not None:
        return _check_url(settings, program.health, is_airflow=program.kind == "airflow")
    if program.ports:
        return _check_port(settings.loopback, program.ports[0].number)
    return _check_process(settings, program)


def _check_url(settings: Settings, health_url: str, *, is_airflow: bool) -> Check:
    """Query a program's health URL, which answers 200 if the program is healthy, with details as JSON."""
    headers = {} if is_airflow else settings.bearer  # Airflow has users of its own, and must not get the services' token
    try:
        tls_context = verified(settings, health_url)
        answer = httpx.get(health_url, headers=headers, timeout=_TIMEOUT_S, trust_env=False, verify=tls_context)
        details = answer.json()
    except (httpx.HTTPError, OSError) as exc:
        return Check(False, f"no answer ({message_of(exc)})")
    except ValueError:
        return Check(False, f"{health_url} does not answer with JSON")
    if is_airflow:
        return _judge_airflow(answer.status_code, details)
    is_healthy = answer.status_code == httpx.codes.OK
    reason = "" if is_healthy else "not ready"
    fields = details if isinstance(details, dict) else {}
    return Check(is_healthy, reason, {name: value for name, value in fields.items() if name != "healthy"})


def _judge_airflow(status_code: int, body: Any) -> Check:
    """Judge the answer of Airflow's health URL: every component in `airflow.REQUIRED_COMPONENTS` must be healthy."""
    if status_code != httpx.codes.OK or not isinstance(body, dict):
        return Check(False, f"answers {status_code}")
    states = {name: component.get("status") for name, component in body.items() if isinstance(component, dict)}
    unhealthy = [name for name in airflow.REQUIRED_COMPONENTS if states.get(name) != "healthy"]
    reason = f"not healthy: {', '.join(unhealthy)}" if unhealthy else ""
    return Check(not unhealthy, reason, states)


def _check_process(settings: Settings, program: Program) -> Check:
    record = HomeLayout(settings.home).recorded().get(program.name)
    is_running = record is not None and record.process() is not None
    return Check(is_running, "" if is_running else "does not run")


def _check_port(host: str, port: int) -> Check:
    try:
        socket.create_connection((host, port), _TIMEOUT_S).close()
    except OSError as exc:
        return Check(False, f"no answer ({exc})")
    return Check(True)


def _check_socket(path: str) -> Check:
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_TIMEOUT_S)
            probe.connect(path)
    except OSError as exc:
        return Check(False, f"no answer ({exc})")
    return Check(True)


def _connect_redis(settings: Settings) -> redis.Redis:
    return connect(settings.redis, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S)


def _check_redis(settings: Settings) -> Check:
    try:
        with _connect_redis(settings) as client:
            client.ping()
    except redis.RedisError as exc:
        return Check(False, f"no answer ({exc})")
    return Check(True)


def _queue_state(settings: Settings) -> str:
    """Return whether the queues are loaded, as in `Status.queues`: Redis has a mark for that, a cluster several."""
    try:
        with _connect_redis(settings) as client:
            _, is_cluster = split_redis_url(settings.redis)
            marks = keys.loaded_marks(of_cluster=is_cluster)
            return "loaded" if client.exists(*marks) == len(marks) else REBUILD_NEEDED
    except redis.RedisError:
        return "unknown"
