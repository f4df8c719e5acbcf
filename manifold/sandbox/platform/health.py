"""The health of the embedded platform: queries every program and the queues' markers; read only."""

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
KEEPER = "keeper"  # listed in the processes only with TLS
_ANSWER_S = 3.0


@dataclass(frozen=True, slots=True)
class Check:
    """Whether one program is ready to serve, and its details (JSON values)."""

    healthy: bool
    reason: str = ""  # why it is not healthy
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
            "health": {
                name: {"healthy": c.healthy, "reason": c.reason, **self._state(name), **c.details}
                for name, c in self.checks.items()
            },
        }

    def _state(self, name: str) -> dict[str, str]:
        state = self.states.get(name)
        return {"state": state.state} if state else {}


def as_started(settings: Settings) -> Settings:
    """Return the settings with `with_airflow`, `with_signals` and `with_campaigns` as the running platform was started."""
    layout = HomeLayout(settings.home)
    if not layout.supervisor():
        return settings
    began = layout.started_with()
    return settings.model_copy(
        update={name: began.get(name, getattr(settings, name)) for name in ("with_airflow", "with_signals", "with_campaigns")}
    )


def status(settings: Settings) -> Status:
    """Return the platform's status, also if nothing runs. A platform started without Airflow is healthy without it."""
    layout, settings = HomeLayout(settings.home), as_started(settings)
    wanted = programs(settings)
    with ThreadPoolExecutor(1) as pool:
        queues = pool.submit(_queues, settings)
        checks = check(wanted, settings)
    return Status(
        healthy=queues.result() == "loaded" and all(c.healthy for c in checks.values()),
        addresses=Addresses.of(settings),
        queues=queues.result(),
        processes=pids(layout),
        checks=checks,
        states=states(layout) if layout.supervisor() else {},
    )


def check(wanted: Sequence[Program], settings: Settings) -> dict[str, Check]:
    """Return the health of each program, by name; checked concurrently."""
    with ThreadPoolExecutor(max(1, len(wanted))) as pool:
        answers = {program.name: pool.submit(_check, program, settings) for program in wanted}
        return {name: answer.result() for name, answer in answers.items()}


def pids(layout: HomeLayout) -> dict[str, list[int]]:
    """Return the recorded processes that are running, by kind."""
    found: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for name, record in layout.recorded().items():
        kind = name.partition("-")[0]
        if kind in (*KINDS, KEEPER) and record.process():
            found.setdefault(kind, []).append(record.pid)
    return found


def _check(program: Program, settings: Settings) -> Check:
    """Check a program in the way that its kind allows: a query, its health page, its port, or whether it runs."""
    if program.kind == "redis":
        return _ask_redis(settings)
    if program.kind == "broker" and settings.tls:
        return _listens_at(str(outer_socket(settings)))
    if program.health is None and not program.ports:
        return _runs(settings, program)
    if program.health is None:
        return _listens(settings.loopback, program.ports[0].number)
    headers = {} if program.kind == "airflow" else settings.bearer
    try:
        trust = verified(settings, program.health)
        answer = httpx.get(program.health, headers=headers, timeout=_ANSWER_S, trust_env=False, verify=trust)
        details = answer.json()
    except (httpx.HTTPError, OSError) as exc:
        return Check(False, f"no answer ({message_of(exc)})")
    except ValueError:
        return Check(False, f"{program.health} does not answer with JSON")
    if program.kind == "airflow":
        return _airflow(answer.status_code, details)
    details = details if isinstance(details, dict) else {}
    healthy = answer.status_code == httpx.codes.OK
    return Check(healthy, "" if healthy else "not ready", {name: value for name, value in details.items() if name != "healthy"})


def _airflow(code: int, details: Any) -> Check:
    """Return healthy if every required component reports healthy."""
    if code != httpx.codes.OK or not isinstance(details, dict):
        return Check(False, f"answers {code}")
    parts = {name: part.get("status") for name, part in details.items() if isinstance(part, dict)}
    ill = [name for name in airflow.NEEDED if parts.get(name) != "healthy"]
    return Check(not ill, f"not healthy: {', '.join(ill)}" if ill else "", parts)


def _runs(settings: Settings, program: Program) -> Check:
    record = HomeLayout(settings.home).recorded().get(program.name)
    runs = record is not None and record.process() is not None
    return Check(runs, "" if runs else "does not run")


def _listens(host: str, port: int) -> Check:
    try:
        socket.create_connection((host, port), _ANSWER_S).close()
    except OSError as exc:
        return Check(False, f"no answer ({exc})")
    return Check(True)


def _listens_at(path: str) -> Check:
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_ANSWER_S)
            probe.connect(path)
    except OSError as exc:
        return Check(False, f"no answer ({exc})")
    return Check(True)


def _redis(settings: Settings) -> redis.Redis:
    return connect(settings.redis, socket_timeout=_ANSWER_S, socket_connect_timeout=_ANSWER_S)


def _ask_redis(settings: Settings) -> Check:
    try:
        with _redis(settings) as client:
            client.ping()
    except redis.RedisError as exc:
        return Check(False, f"no answer ({exc})")
    return Check(True)


def _queues(settings: Settings) -> str:
    try:
        with _redis(settings) as client:
            marks = keys.loaded_marks(of_cluster=split_redis_url(settings.redis)[1])
            return "loaded" if client.exists(*marks) == len(marks) else REBUILD_NEEDED
    except redis.RedisError:
        return "unknown"
