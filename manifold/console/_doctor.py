"""`manifold doctor`: checks everything that Manifold depends on, and names the remedies."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import typer
from pyiceberg.exceptions import NoSuchNamespaceError
from redis.exceptions import RedisError
from sqlalchemy.exc import DatabaseError

from manifold.console._broker_probe import probe_quietly
from manifold.console._diagnostic import Diagnostic
from manifold.console._doctor_archive import check_archive
from manifold.console._doctor_certificates import check_certificates
from manifold.console._doctor_signals import RING_REMEDY, SIGNING_REMEDY, check_rabbitmq, probe_ring, probe_signatures
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
MIN_JAVA_VERSION = 17
MAX_ERROR_CHARS = 200  # shown of an error


@handle_errors
def doctor(as_json: AsJson = False) -> None:
    """Check everything that Manifold depends on, and name remedies; exit status 1 if a check fails."""
    settings = settings_or_fail()
    findings = list(examine(settings))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        rows = []
        for finding in findings:
            result, remedy = ("ok", "") if finding.passed else ("FAILED", finding.remedy)
            rows.append((result, finding.check, finding.seen, remedy))
        out.print(table("", ("", "check", "seen", "remedy"), rows))
    if not all(finding.passed for finding in findings):
        raise typer.Exit(FAILED)


def examine(settings: Settings) -> Iterator[Diagnostic]:
    """Run the checks one after the other, and yield the result of each: first the dependencies, then what depends on them."""
    yield Diagnostic("python", True, sys.version.split()[0])
    yield _check_java()
    settings = as_started(settings)  # without the optional services that the running platform was started without
    yield from _check_programs(settings)
    yield _check_jars(settings)
    yield _check_home(settings)
    yield check_archive(settings)
    yield _attempt("catalog", partial(_probe_catalog, settings), "make up creates it; else correct MANIFOLD_CATALOG_URI")
    yield _check_tables(settings)
    yield from _check_redis(settings)
    yield from _check_services(settings)


def _check_redis(settings: Settings) -> Iterator[Diagnostic]:
    """Check that Redis answers, has memory left, persists its writes, and that its queues are loaded."""
    yield _attempt("redis", partial(_probe_redis, settings), "make up; else correct MANIFOLD_REDIS_URL")
    yield _attempt("redis memory", partial(_probe_memory, settings), "raise maxmemory, and set maxmemory-policy to noeviction")
    persistence_remedy = (
        "set appendonly yes and appendfsync everysec: entries that Redis loses are queued again, but those that were just "
        "sent or acknowledged may be sent twice"
    )
    yield _attempt("redis persistence", partial(_probe_persistence, settings), persistence_remedy)
    yield _attempt("queues", partial(_probe_loaded_marks, settings), "manifold rebuild fills the queues from the lake")


def _check_services(settings: Settings) -> Iterator[Diagnostic]:
    """Check the services that these settings include, the broker, and the certificates."""
    start_remedy = f"make up; its log is in {settings.home}/logs"
    ports = {"recorder": settings.recorder_port}
    if settings.mqtt_url:
        yield from probe_quietly(settings)
    else:
        ports["tap"] = settings.tap_port  # publishes the events of the embedded broker
    ports |= {f"dispatcher {n}": settings.dispatcher_port + n for n in range(settings.dispatchers)}
    for name, port in ports.items():
        yield _attempt(name, partial(_probe_health, settings, settings.http(port)), start_remedy)
    recorders_remedy = "list the address of every recorder in MANIFOLD_RECORDER_URLS, also for jobs"
    yield _attempt("recorders", partial(_probe_recorders, settings), recorders_remedy)
    certificate_check = check_certificates(settings)
    if certificate_check is not None:
        yield certificate_check
    yield _attempt("api", partial(_probe_health, settings, settings.api), start_remedy)
    enqueue_remedy = "remove the cause that it names; messages recorded until then are queued afterwards"
    yield _attempt("direct enqueue", partial(_probe_direct_enqueue, settings), enqueue_remedy)
    if settings.with_campaigns:
        yield _attempt("campaigner", partial(_probe_health, settings, settings.http(settings.campaigner_port)), start_remedy)
    if settings.with_signals:
        yield check_rabbitmq(settings)
        yield _attempt("signals", partial(_probe_health, settings, settings.http(settings.signals_port)), start_remedy)
        yield _attempt("signatures of signals", partial(probe_signatures, settings), SIGNING_REMEDY)
        yield _attempt("key ring of signals", partial(probe_ring, settings), RING_REMEDY)
    if settings.with_airflow:
        yield _attempt("airflow", partial(_probe_airflow, settings), start_remedy)


def _attempt(check: str, probe: Callable[[], str], remedy: str) -> Diagnostic:
    """Run a probe, which returns what it observed, or raises an error that says what is wrong; return the result of the check.

    Other errors than those of servers, files and values propagate.
    """
    try:
        return Diagnostic(check, True, probe())
    except (RedisError, httpx.HTTPError, DatabaseError, NoSuchNamespaceError, OSError, ValueError) as exc:
        message_in_one_line = " ".join(str(exc).split())
        return Diagnostic(check, False, message_in_one_line[:MAX_ERROR_CHARS] or type(exc).__name__, remedy)


def _check_java() -> Diagnostic:
    remedy = f"install a Java runtime, {MIN_JAVA_VERSION} or newer: make setup, or apt-get install openjdk-17-jre-headless"
    try:
        output = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError):
        return Diagnostic("java", False, "not found", remedy)
    version = output.split('"')[1] if '"' in output else output.strip()  # the output begins like `openjdk version "17.0.9" …`
    major = version.split(".")[0]
    return Diagnostic("java", major.isdigit() and int(major) >= MIN_JAVA_VERSION, version, remedy)


def _check_programs(settings: Settings) -> Iterator[Diagnostic]:
    """Check that those servers are installed for which no setting names an external one, so that Manifold starts them itself."""
    needed = []
    if not settings.redis_url.get_secret_value():
        needed.append("redis-server")
    if not settings.mqtt_url:
        needed.append("mosquitto")
    for program in needed:
        path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
        yield Diagnostic(program, path is not None, path or "not found", f"make setup, or apt-get install {program}")


def _check_jars(settings: Settings) -> Diagnostic:
    missing = [name for name in jars_for(settings) if not (settings.jars / name).exists()]
    seen = f"{', '.join(missing)} missing" if missing else str(settings.jars)
    remedy = f"{sys.executable} -m pipelines.spark.jars"  # `make setup` only fetches the jars of the default settings
    return Diagnostic("Spark's jars", not missing, seen, remedy)


def _check_home(settings: Settings) -> Diagnostic:
    """Check that the home, or its closest existing parent if it does not exist yet, is writable and has free space."""
    home = settings.home
    folder = next(folder for folder in (home, *home.parents) if folder.exists())
    free_bytes = shutil.disk_usage(folder).free
    passed = os.access(folder, os.W_OK) and free_bytes >= MIN_FREE_BYTES
    seen = f"{home}, {free_bytes / (1 << 30):.1f} GiB free"
    return Diagnostic("home", passed, seen, "make room there, or set MANIFOLD_HOME to another disk")


def _probe_catalog(settings: Settings) -> str:
    """Count the tables in the catalog. A SQLite file that does not exist is an error: opening the catalog would create it."""
    file = settings.catalog.removeprefix(SQLITE)
    if settings.catalog.startswith(SQLITE) and not Path(file).exists():
        raise ValueError(f"{file} does not exist yet")
    return f"{len(open_catalog(settings).list_tables(NAMESPACE))} tables"


def _check_tables(settings: Settings) -> Diagnostic:
    """Check the tables' versions: older ones can be migrated, newer ones need the newer release."""
    from pipelines.migrations.migrate import plan  # imported here, so that --help is fast

    def probe() -> str:
        _probe_catalog(settings)  # raises if there is no catalog, which `open_catalog` would create
        due_steps = plan(open_catalog(settings)).steps
        if due_steps:
            tables = sorted({step.table for step in due_steps})
            raise ValueError(f"{len(due_steps)} steps are due: {', '.join(tables)}")
        return "up to date with this release"

    try:
        return _attempt("tables", probe, "manifold lake migrate; with --plan it lists the steps")
    except Permanent as exc:  # a version that this release cannot migrate; after the first colon, the message has the remedy
        seen, _, remedy = str(exc).partition(": ")
        return Diagnostic("tables", False, seen, remedy)


def _probe_redis(settings: Settings) -> str:
    with connect(settings.redis, socket_timeout=3) as redis:
        redis.ping()
    return "answers"


def _probe_memory(settings: Settings) -> str:
    """Check the memory of every node: a full node refuses new entries, and one that may evict keys would lose queued entries."""
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


def _probe_persistence(settings: Settings) -> str:
    """Check the persistence of every node: with snapshots alone, a restart loses everything after the last snapshot."""
    for info in _node_infos(settings, "persistence"):
        if not info["aof_enabled"]:
            raise ValueError("snapshots only: a restart loses every write after the last snapshot")
        if info["aof_last_write_status"] != "ok":
            raise ValueError(f"the last write to the append-only file failed: {info['aof_last_write_status']}")
    return "every write is in the append-only file"


def _node_infos(settings: Settings, section: str) -> list[Any]:
    """This section of Redis' INFO as a dict, from every primary node of a cluster, or from the single server."""
    _, is_cluster = split_redis_url(settings.redis)
    with connect(settings.redis, socket_timeout=3) as redis:
        if not is_cluster:
            return [redis.info(section)]
        info_by_node: Any = redis.info(section, target_nodes="primaries")
    return list(info_by_node.values())


def _probe_direct_enqueue(settings: Settings) -> str:
    """Return the state of the recorder's direct enqueue: `off` if a setting has turned it off.

    Raises:
        ValueError: the recorder has suspended direct enqueue; the state says why.
    """
    state = str(_health_details(settings, settings.http(settings.recorder_port)).get("direct_enqueue"))
    if state.startswith("suspended"):
        raise ValueError(state)
    return state


def _probe_loaded_marks(settings: Settings) -> str:
    """Check that Redis has all markers of loaded queues: one on a single server, several on a cluster."""
    _, is_cluster = split_redis_url(settings.redis)
    with connect(settings.redis, socket_timeout=3) as redis:
        marks = keys.loaded_marks(of_cluster=is_cluster)
        if redis.exists(*marks) < len(marks):
            raise ValueError("rebuild needed: the queues in Redis are not loaded")
    return "loaded"


def _probe_recorders(settings: Settings) -> str:
    """Check that the settings name every recorder that holds a node number, because jobs ask only those to close segments."""
    from manifold.archive.lease_holders import current_holders

    nodes: set[Any] = {_health_details(settings, url).get("node") for url in settings.recorders}
    if settings.with_signals:
        nodes.add(settings.signals_node)
    unknown = current_holders(settings, excluding=nodes)
    if unknown:
        holders = ", ".join(f"node={node} ({holder.where})" for node, holder in sorted(unknown.items()))
        raise ValueError(f"jobs do not know the recorders {holders}")
    return f"jobs ask all {len(nodes)}"


def _probe_airflow(settings: Settings) -> str:
    url = f"{airflow.url(settings)}{airflow.HEALTH}"
    httpx.get(url, timeout=5, verify=verified(settings, url)).raise_for_status()
    return "healthy"


def _probe_health(settings: Settings, service_url: str) -> str:
    """Ask a service for its health. If it is not healthy, raise ValueError with its reply, which says why."""
    reply = _get_health(settings, service_url)
    if reply.status_code != httpx.codes.OK:
        raise ValueError(reply.text)
    return "healthy"


def _health_details(settings: Settings, service_url: str) -> dict[str, Any]:
    """Return the JSON object with which a service answers on its health route.

    Raises:
        ValueError: the answer is not a JSON object, because another program uses the port.
    """
    details = _get_health(settings, service_url).json()
    if not isinstance(details, dict):
        raise ValueError(f"{service_url} does not answer as a service of Manifold")
    return details


def _get_health(settings: Settings, service_url: str) -> httpx.Response:
    return httpx.get(f"{service_url}/healthz", headers=settings.bearer, timeout=5, verify=verified(settings, service_url))
