"""`manifold doctor`: checks everything that Manifold depends on, and names the remedies."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import typer
from pyiceberg.exceptions import NoSuchNamespaceError
from redis.exceptions import RedisError
from sqlalchemy.exc import DatabaseError

from manifold.console._broker_probe import probe_quietly
from manifold.console._diagnostic import Diagnostic
from manifold.console._doctor_archive import archive
from manifold.console._doctor_certificates import certificates
from manifold.console._doctor_signals import RING_REMEDY, SIGNING_REMEDY, rabbitmq, ring, signatures
from manifold.console._output import FAILED, AsJson, handle_errors, out, print_json, settings_or_fail, table
from manifold.contracts import keys
from manifold.contracts.errors import Permanent
from manifold.contracts.redis_url import split_redis_url
from manifold.contracts.tables import NAMESPACE
from manifold.lake.catalog import SQLITE, open_catalog
from manifold.runtime.redis import connect
from manifold.runtime.tls import verified
from manifold.sandbox.platform import airflow
from manifold.sandbox.platform.health import as_started
from manifold.settings import Settings
from pipelines.spark.conf import jars_for

MIN_FREE_BYTES = 2 << 30
OLDEST_JAVA = 17


@handle_errors
def doctor(as_json: AsJson = False) -> None:
    """Check everything that Manifold depends on, and name remedies; exit status 1 if one is needed."""
    settings = settings_or_fail()
    findings = list(examine(settings))
    if as_json:
        print_json([{"check": f.check, "passed": f.passed, "seen": f.seen, "remedy": f.remedy} for f in findings])
    else:
        rows = [("ok" if f.passed else "FAILED", f.check, f.seen, "" if f.passed else f.remedy) for f in findings]
        out.print(table("", ("", "check", "seen", "remedy"), rows))
    if not all(f.passed for f in findings):
        raise typer.Exit(FAILED)


def examine(settings: Settings) -> Iterator[Diagnostic]:
    """Yield every check, in order of dependency."""
    yield Diagnostic("python", True, sys.version.split()[0])
    yield _java()
    settings = as_started(settings)
    is_embedded = {"redis-server": not settings.redis_url.get_secret_value(), "mosquitto": not settings.mqtt_url}
    for program in (name for name, is_needed in is_embedded.items() if is_needed):
        path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
        yield Diagnostic(program, path is not None, path or "not found", f"make setup, or apt-get install {program}")
    missing = [name for name in jars_for(settings) if not (settings.jars / name).exists()]
    fetch = f"{sys.executable} -m pipelines.spark.jars"  # `make setup` only knows the default settings
    yield Diagnostic("Spark's jars", not missing, ", ".join(missing) + " missing" if missing else str(settings.jars), fetch)
    yield _home(settings)
    yield archive(settings)
    yield _attempt("catalog", lambda: _catalog(settings), "make up makes it; else correct MANIFOLD_CATALOG_URI")
    yield _tables(settings)
    yield _attempt("redis", lambda: _redis(settings), "make up; else correct MANIFOLD_REDIS_URL")
    yield _attempt("redis memory", lambda: _memory(settings), "raise maxmemory, and set maxmemory-policy to noeviction")
    yield _attempt(
        "redis persistence",
        lambda: _persistence(settings),
        "set appendonly yes and appendfsync everysec: what Redis loses is offered again, but what it was busy with is sent twice",
    )
    yield _attempt("queues", lambda: _loaded(settings), "manifold rebuild fills the queues from the lake")
    ports = {"recorder": settings.recorder_port}
    if settings.mqtt_url:
        yield from probe_quietly(settings)
    else:
        ports["tap"] = settings.tap_port
    ports |= {f"dispatcher {n}": settings.dispatcher_port + n for n in range(settings.dispatchers)}
    for name, port in ports.items():
        yield _attempt(name, lambda port=port: _healthz(settings, port), f"make up; its log is in {settings.home}/logs")  # type: ignore[misc]
    yield _attempt(
        "recorders", lambda: _recorders(settings), "name the address of each in MANIFOLD_RECORDER_URLS, of every job too"
    )
    certificate_check = certificates(settings)
    if certificate_check is not None:
        yield certificate_check
    yield _attempt("api", lambda: _api(settings), f"make up; its log is in {settings.home}/logs")
    yield _attempt(
        "direct enqueue", lambda: _direct_enqueue(settings), "cure what it says; what is recorded meanwhile is offered then"
    )
    if settings.with_campaigns:
        yield _attempt(
            "campaigner", lambda: _healthz(settings, settings.campaigner_port), f"make up; its log is in {settings.home}/logs"
        )
    if settings.with_signals:
        yield rabbitmq(settings)
        yield _attempt(
            "signals", lambda: _healthz(settings, settings.signals_port), f"make up; its log is in {settings.home}/logs"
        )
        yield _attempt("signatures of signals", lambda: signatures(settings), SIGNING_REMEDY)
        yield _attempt("key ring of signals", lambda: ring(settings), RING_REMEDY)
    if settings.with_airflow:
        url = f"{airflow.url(settings)}{airflow.HEALTH}"
        yield _attempt("airflow", lambda: _get(settings, url), f"make up; its log is in {settings.home}/logs")


def _attempt(check: str, probe: Callable[[], str], remedy: str) -> Diagnostic:
    """Run a probe, which returns what it has seen, or raises what is wrong."""
    try:
        return Diagnostic(check, True, probe())
    except (RedisError, httpx.HTTPError, DatabaseError, NoSuchNamespaceError, OSError, ValueError) as exc:
        return Diagnostic(check, False, " ".join(str(exc).split())[:200] or type(exc).__name__, remedy)


def _java() -> Diagnostic:
    remedy = f"install a Java runtime, {OLDEST_JAVA} or newer: make setup, or apt-get install openjdk-17-jre-headless"
    try:
        output = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError):
        return Diagnostic("java", False, "not found", remedy)
    version = output.split('"')[1] if '"' in output else output.strip()
    major = version.split(".")[0]
    return Diagnostic("java", major.isdigit() and int(major) >= OLDEST_JAVA, version, remedy)


def _home(settings: Settings) -> Diagnostic:
    home = settings.home
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    free_bytes = shutil.disk_usage(existing).free
    passed = os.access(existing, os.W_OK) and free_bytes >= MIN_FREE_BYTES
    seen = f"{home}, {free_bytes / (1 << 30):.1f} GiB free"
    return Diagnostic("home", passed, seen, "make room there, or set MANIFOLD_HOME to another disk")


def _catalog(settings: Settings) -> str:
    file = settings.catalog.removeprefix(SQLITE)
    if settings.catalog.startswith(SQLITE) and not Path(file).exists():
        raise ValueError(f"{file} does not exist yet")
    return f"{len(open_catalog(settings).list_tables(NAMESPACE))} tables"


def _tables(settings: Settings) -> Diagnostic:
    """Check the tables' versions: older ones can be migrated, newer ones need the newer release."""
    from pipelines.migrations.migrate import plan  # imported here, so that --help is fast

    def probe() -> str:
        _catalog(settings)
        due = plan(open_catalog(settings)).steps
        if due:
            raise ValueError(f"{len(due)} steps are due: {', '.join(sorted({step.table for step in due}))}")
        return "up to date with this release"

    try:
        return _attempt("tables", probe, "manifold lake migrate (with --plan it says what it would do)")
    except Permanent as exc:
        seen, _, remedy = str(exc).partition(": ")
        return Diagnostic("tables", False, seen, remedy)


def _redis(settings: Settings) -> str:
    with connect(settings.redis, socket_timeout=3) as redis:
        redis.ping()
    return "answers"


def _memory(settings: Settings) -> str:
    """Check the memory of every node: a full Redis refuses new entries, and eviction would lose queued ones."""
    seen = []
    for info in _node_infos(settings, "memory"):
        used, limit, policy = info["used_memory"], info["maxmemory"], info["maxmemory_policy"]
        state = f"{used >> 20} of {limit >> 20} MiB, {policy}" if limit else f"{used >> 20} MiB, no limit"
        is_full = bool(limit) and used >= limit
        may_evict = bool(limit) and policy != "noeviction"
        if is_full or may_evict:
            raise ValueError(state)
        seen.append(state)
    return "; ".join(seen)


def _persistence(settings: Settings) -> str:
    """Check the persistence of every node: with snapshots alone, a restart loses everything after the last snapshot."""
    for info in _node_infos(settings, "persistence"):
        if not info["aof_enabled"]:
            raise ValueError("snapshots only: a restart loses what came after the last one")
        if info["aof_last_write_status"] != "ok":
            raise ValueError(f"the last write to its file failed: {info['aof_last_write_status']}")
    return "every write is in its file"


def _node_infos(settings: Settings, section: str) -> list[Any]:
    """This section of Redis' INFO, from every primary node of a cluster, or from the only node."""
    _, is_cluster = split_redis_url(settings.redis)
    with connect(settings.redis, socket_timeout=3) as redis:
        if not is_cluster:
            return [redis.info(section)]
        info_by_node: Any = redis.info(section, target_nodes="primaries")
    return list(info_by_node.values())


def _direct_enqueue(settings: Settings) -> str:
    health = _get_health(settings, settings.http(settings.recorder_port)).json()
    state = str(health.get("direct_enqueue"))
    if state.startswith("suspended"):
        raise ValueError(state)
    return state


def _loaded(settings: Settings) -> str:
    """Check the markers that say that the queues are loaded."""
    _, is_cluster = split_redis_url(settings.redis)
    with connect(settings.redis, socket_timeout=3) as redis:
        marks = keys.loaded_marks(of_cluster=is_cluster)
        if redis.exists(*marks) < len(marks):
            raise ValueError("rebuild needed: Redis does not hold what is pending")
    return "loaded"


def _healthz(settings: Settings, port: int) -> str:
    return _healthy(settings, settings.http(port))


def _recorders(settings: Settings) -> str:
    """Check that the settings name every recorder that holds a node number: jobs ask these recorders to close their segments."""
    from manifold.archive.lease_holders import unqueried_holders

    nodes = {_get_health(settings, url).json().get("node") for url in settings.recorders}
    if settings.with_signals:
        nodes.add(settings.signals_node)
    unknown = unqueried_holders(settings, nodes)
    if unknown:
        holders = ", ".join(f"node={node} ({holder.where})" for node, holder in sorted(unknown.items()))
        raise ValueError(f"no job knows {holders}")
    return f"each of {len(nodes)} is asked"


def _api(settings: Settings) -> str:
    return _healthy(settings, settings.api)


def _healthy(settings: Settings, service: str) -> str:
    reply = _get_health(settings, service)
    if reply.status_code != httpx.codes.OK:
        raise ValueError(reply.text)
    return "healthy"


def _get_health(settings: Settings, service: str) -> httpx.Response:
    return httpx.get(f"{service}/healthz", headers=settings.bearer, timeout=5, verify=verified(settings, service))


def _get(settings: Settings, url: str) -> str:
    httpx.get(url, timeout=5, verify=verified(settings, url)).raise_for_status()
    return "healthy"
