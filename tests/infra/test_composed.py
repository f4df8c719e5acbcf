"""compose.yml, started: the services available here, with their order, secrets, rights and health checks."""

import json
import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.infra.composed import GATEWAY, SERVERS, Composed, build_servers, composed
from tests.infra.containers import IMAGE, missing, podman

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("IMAGE" not in os.environ, reason="an image takes minutes to build: make image"),
    pytest.mark.skipif("IMAGE" in os.environ and bool(missing()), reason=missing() if "IMAGE" in os.environ else ""),
    pytest.mark.skipif(not GATEWAY.exists(), reason="no S3 gateway: make stores"),
]

# EMQX is not available. In its place: Mosquitto behind the tap, without shared subscriptions of $ topics and without REST.
BROKER = {"MANIFOLD_MQTT_URL": "mqtt://emqx:1883", "MANIFOLD_MQTT_SHARED": "off", "MANIFOLD_EMQX_API_URL": ""}
VEHICLE = """
import asyncio
from manifold.messaging.publisher import Publisher
from manifold.contracts.messages import sha1_hex
from manifold.settings import load_settings
from manifold.sandbox.fleet import Fleet

async def main():
    settings = load_settings(mqtt_vehicle_url="mqtt://127.0.0.1:1883")
    async with Fleet(settings, ["1M8GDM9AXKP042788"], seed=1) as fleet, Publisher(settings) as platform:
        await fleet.connect()
        await platform.data("map-1", b"through compose")
        receipt = await platform.trigger(["1M8GDM9AXKP042788"], "task_compose_1", "map-1")
        await fleet.wait_for(lambda it: it.acknowledged, 60)
        print(receipt.status.value, fleet.received[0].payload_sha1 == sha1_hex(b"through compose"))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    build_servers(tmp_path_factory.mktemp("servers"))
    with composed(f"manifold-compose-{os.getpid()}", tmp_path_factory.mktemp("compose"), BROKER) as made:
        ran = subprocess.run([made.folder / "compose" / "secrets.sh"], capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, ran.stderr
        for server in ("redis", "postgres", "object-store", "rabbitmq"):
            made.start(server)
        start_broker(made)
        for server in ("redis", "postgres", "object-store", "rabbitmq"):
            made.wait_healthy(server)
        yield made


def start_broker(made: Composed) -> None:
    """Start a broker in place of the service `emqx`."""
    own = [f"--volume={made.name}-broker:/var/lib/manifold", "--user=10001:10001"]
    write = "from manifold.settings import load_settings; from manifold.sandbox.platform.broker import write_config; "
    podman("run", "--rm", *own, IMAGE, "python", "-c", f"{write}write_config(load_settings())")
    made.start_beside("mosquitto", SERVERS, "mosquitto", "-c", "/var/lib/manifold/mosquitto/mosquitto.conf", how=own)
    made.start_beside("emqx", IMAGE, "python", "-m", "manifold.sandbox.tap", how=own)


@pytest.mark.timeout(900)  # the site is built before it, and each service may take 300 s
def test_every_service_becomes_healthy(site: Composed) -> None:
    for service in ("recorder", "dispatcher", "campaigner", "signals", "api"):
        site.start(service)
    site.run("airflow-migrate")
    for service in ("airflow-api-server", "airflow-scheduler", "airflow-dag-processor"):
        site.start(service)
    for service in ("recorder", "dispatcher", "campaigner", "signals", "api", "airflow-api-server", "airflow-scheduler"):
        site.wait_healthy(service, within_s=300)


def test_a_batch_is_delivered(site: Composed) -> None:
    site.ask("airflow-scheduler", "manifold", "rebuild")  # queues that were never loaded accept nothing, as after any loss
    assert "recorded True" in site.ask("recorder", "python", "-c", VEHICLE).splitlines()  # among the log output of clients


def test_the_archive_in_the_store_is_ingested(site: Composed) -> None:
    told = json.loads(site.ask("airflow-scheduler", "manifold", "ingest", "--json"))
    assert told["ingested"]["segments"] >= 1
