"""The image, built and run: its user, its rights, and a batch from a trigger to a vehicle and into the lake."""

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from manifold.contracts.messages import ReceiptStatus, sha1_hex
from manifold.contracts.names import Owner
from manifold.contracts.signals import topology
from manifold.lake.key_ring import new_key_line
from manifold.messaging.publisher import Publisher
from manifold.sandbox.fleet import Fleet
from manifold.sandbox.platform import rabbitmq
from manifold.settings import Settings, load_settings
from tests.infra.containers import IMAGE as NAME
from tests.infra.containers import USER, Container, container, folder_of, missing, podman, run_once
from tests.infra.test_dockerfile import HERE, loaded
from tests.manifold.signals.gateway import SECRET, Gateway
from tests.support.platforms import PORTS, variables
from tests.support.rabbitmq import needs_rabbitmq, start_rabbitmq
from tests.support.servers import ROOT, answers, free_port, start_embedded_broker, start_redis, start_tap, wait_until

HOME = "/var/lib/manifold"
SERVICES = {"recorder": (), "dispatcher": ("--replica", "0"), "campaigner": (), "api": (), "signals": ()}
MODULES = {name: f"manifold.{name}" for name in SERVICES} | {"dispatcher": "dispatcher", "campaigner": "manifold.campaigns"}
VIN = Owner("1M8GDM9AXKP042788")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("IMAGE" not in os.environ, reason="an image takes minutes to build: make image"),
    pytest.mark.skipif("IMAGE" in os.environ and bool(missing()), reason=missing() if "IMAGE" in os.environ else ""),
]

LOOK = """
import json, os, pathlib
status = dict(line.split(":\\t", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines() if ":\\t" in line)
written = []
for folder in ("/", "/etc", "/opt/manifold", "/opt/venv/lib", "/usr/bin", "/var/lib", "/run"):
    try:
        pathlib.Path(folder, "written").touch()
        written.append(folder)
    except OSError:
        pass
seen = {"user": os.getuid(), "groups": os.getgroups(), "new": status["NoNewPrivs"], "written": written}
print(json.dumps(seen | {"rights": [status[name] for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")]}))
"""

PREPARE = """
from threading import Event
from manifold.settings import load_settings
from manifold.sandbox.platform.bootstrap import prepare
prepare(load_settings(), fresh=True, given_up=Event())
"""
COUNT = """
from manifold.lake.catalog import open_catalog
from manifold.settings import load_settings
from manifold.contracts.tables.fanout import IDS
print(open_catalog(load_settings()).load_table(IDS.identifier).scan().to_arrow().num_rows)
"""


def test_the_image_runs_unprivileged_and_read_only() -> None:
    seen = json.loads(run_once("python", "-c", LOOK).stdout)
    assert (seen["user"], seen["groups"]) == (USER, [USER])
    assert [int(rights, 16) for rights in seen["rights"]] == [0, 0, 0, 0]
    assert (seen["new"], seen["written"]) == ("1", [])


def test_the_image_has_labels_and_no_secret_of_this_machine() -> None:
    (image,) = json.loads(podman("image", "inspect", NAME).stdout)
    labels = image["Config"]["Labels"]
    assert labels["org.opencontainers.image.version"] == run_once("manifold", "--version").stdout.split()[-1]
    assert len(labels["org.opencontainers.image.revision"]) == 40
    assert image["Config"]["User"] == f"{USER}:{USER}"
    assert image["Healthcheck"]["Test"] == ["CMD", "healthy"]
    assert not [each for each in image["Config"]["Env"] if "pip" in each.lower() or "CERT" in each or "PROXY" in each.upper()]
    kept = run_once("sh", "-c", "ls -A /run/secrets /root/.config /etc/pip.conf 2>/dev/null || true").stdout.split()
    assert kept == []


def test_a_source_change_adds_a_small_layer() -> None:
    layers = json.loads(podman("history", "--format=json", NAME).stdout)
    (source,) = [layer for layer in layers if layer["CreatedBy"].strip().endswith(" in /opt/manifold")]
    assert int(source["size"]) < 10_000_000
    above = layers[: layers.index(source)]
    assert sum(int(layer["size"]) for layer in above) < 100_000


def test_libraries_match_the_lock_without_development_packages() -> None:
    lock = loaded(HERE / "runtime_lock.py")
    whole = lock.blocks((ROOT / "requirements.lock").read_text())
    wanted = {name: whole[name].partition("==")[2].split()[0] for name in lock.runtime_packages(whole)}
    told = "import json; from importlib.metadata import distributions as d; print(json.dumps({x.name: x.version for x in d()}))"
    there = {_plain(name): version for name, version in json.loads(run_once("python", "-c", told).stdout).items()}
    assert there.pop("manifold") == run_once("manifold", "--version").stdout.split()[-1]
    assert there.items() <= wanted.items()
    assert {"pyspark", "apache-airflow", "great-expectations", "redis"} <= there.keys()
    assert "pytest" not in there


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def test_airflow_loads_every_dag() -> None:
    # The last line is the answer; Airflow may print warnings before it.
    lists = [f"airflow dags {what} --local -o json | tail -n 1" for what in ("list-import-errors", "list")]
    ask = " && ".join(("airflow db migrate >/dev/null 2>&1", *lists))
    ran = run_once("sh", "-c", ask, mounts=("--volume=/var/lib/airflow",))
    errors, _, dags = ran.stdout.partition("\n")
    assert errors.strip() in ("[]", "No data found"), ran.stdout
    expected = {path.stem for path in (ROOT / "dags").glob("[!_]*.py")}
    assert {dag["dag_id"] for dag in json.loads(dags[dags.index("[") :])} >= expected


@dataclass(frozen=True, slots=True)
class Environment:
    """Servers of the sandbox next to processes of the image."""

    settings: Settings
    env: dict[str, str]
    mounts: tuple[str, ...]
    services: dict[str, Container]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    folder = tmp_path_factory.mktemp("image")
    ports: dict[str, Any] = {name: free_port() for name in PORTS}
    settings = load_settings(home=folder / "servers", **ports)
    file, home = folder / "manifold.toml", folder_of(folder / "home")
    with ExitStack() as running:
        running.callback(start_redis(folder / "redis", port=settings.redis_port).stop)
        running.callback(start_embedded_broker(settings).stop)
        running.callback(start_tap(settings).stop)
        amqp = ""
        if rabbitmq.server_script() is not None:
            for server in start_rabbitmq(settings):
                running.callback(server.stop)
            password = (settings.home / "secrets" / "amqp_password").read_text().strip()
            amqp = f"amqp://manifold:{password}@127.0.0.1:{settings.amqp_port}/"
        secrets = {"signals_amqp_url": amqp, "signals_hmac_secret": SECRET, "signals_keys": new_key_line("k1")}
        file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in secrets.items()))
        file.chmod(0o444)
        names = [name for name in ports if name not in ("broker_port", "airflow_port", "amqp_port")]
        env = variables(**{name: getattr(settings, name) for name in names})
        env |= {
            "MANIFOLD_FILE": "/etc/manifold/manifold.toml",
            "MANIFOLD_SEGMENT_MAX_SECONDS": "2",
        }
        mounts = (f"--volume={home}:{HOME}", f"--volume={file}:/etc/manifold/manifold.toml:ro")
        run_once("python", "-c", PREPARE, env=env, mounts=mounts)
        services = {}
        for name, more in SERVICES.items():
            if name != "signals" or amqp:
                command = ("python", "-m", MODULES[name], *more)
                own = container(f"manifold-{name}-{settings.mqtt_port}", *command, env=env, mounts=mounts)
                services[name] = running.enter_context(own)
        yield Environment(settings, env, mounts, services)


def ready(environment: Environment, name: str) -> Container:
    service = environment.services[name]
    try:
        wait_until(service.is_healthy, within_s=90, what=f"{name} to be healthy")
    except TimeoutError as exc:
        raise AssertionError(service.log()[-3000:]) from exc
    return service


async def deliver(settings: Settings, request_id: str, payload: bytes) -> list[str]:
    """Publish one batch to a connected vehicle; return the digests of the messages that it acknowledged."""
    async with Fleet(settings, [VIN], seed=1) as fleet, Publisher(settings) as platform:
        await fleet.connect()
        await platform.data(sha1_hex(payload), payload)
        receipt = await platform.trigger([VIN], request_id, sha1_hex(payload))
        assert receipt.status is ReceiptStatus.RECORDED
        await fleet.wait_for(lambda it: any(each.request_id == request_id for each in it.acknowledged), 30)
        return [each.payload_sha1 for each in fleet.acknowledged if each.request_id == request_id]


def test_a_trigger_reaches_a_vehicle_and_the_api_shows_it(environment: Environment) -> None:
    for name in ("recorder", "dispatcher", "api"):
        ready(environment, name)
    payload = b"from a container"
    assert asyncio.run(deliver(environment.settings, "task_image_1", payload)) == [sha1_hex(payload)]

    def told() -> bool:
        answer = httpx.get(f"{environment.settings.api}/api/v1/vins/{VIN}", trust_env=False, timeout=20).json()
        return [e["state"] for e in answer["ended"] if e["request_id"] == "task_image_1"] == ["delivered"]

    wait_until(told, within_s=30, what="the API to show the delivery")


def test_a_signal_is_processed(environment: Environment) -> None:
    needs_rabbitmq()
    ready(environment, "signals")
    gateway = Gateway(environment.settings)
    try:
        gateway.send_signed(device="device-of-an-image")
        _, body = gateway.get(topology.PROCESSED)
    finally:
        gateway.close()
    assert json.loads(body)["deviceId"] == "device-of-an-image"


def test_spark_in_the_image_ingests_the_archive(environment: Environment) -> None:
    for name in ("recorder", "dispatcher"):
        ready(environment, name)
    asyncio.run(deliver(environment.settings, "task_image_2", b"for the lake"))
    ran = run_once("manifold", "ingest", env=environment.env, mounts=environment.mounts, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert int(run_once("python", "-c", COUNT, env=environment.env, mounts=environment.mounts).stdout.split()[-1]) >= 1


def test_a_service_without_its_servers_is_unhealthy_and_stops_on_sigterm(environment: Environment, tmp_path: Path) -> None:
    nowhere = {
        "MANIFOLD_MQTT_PORT": str(free_port()),
        "MANIFOLD_REDIS_PORT": str(free_port()),
        "MANIFOLD_DISPATCHER_PORT": str(free_port()),
    }
    mounts = (f"--volume={folder_of(tmp_path / 'home')}:{HOME}",)
    with container(f"manifold-alone-{os.getpid()}", "python", "-m", "dispatcher", env=nowhere, mounts=mounts) as alone:
        page = f"http://127.0.0.1:{nowhere['MANIFOLD_DISPATCHER_PORT']}/livez"
        wait_until(lambda: answers(page), within_s=60, what=f"an answer of {page}")
        assert not alone.is_healthy()
        assert alone.stop(within_s=30) == 0


@pytest.mark.parametrize("name", ["campaigner", "dispatcher", "signals", "api", "recorder"])
def test_each_process_stops_in_time_on_sigterm(environment: Environment, name: str) -> None:
    if name == "signals":
        needs_rabbitmq()
    assert ready(environment, name).stop(within_s=45) == 0
