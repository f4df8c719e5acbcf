"""The MQTT examples against a whole platform."""

import re
import sys
from pathlib import Path

import httpx
import pytest

from manifold.settings import Settings
from tests.dispatcher.platform_client import PlatformClient
from tests.examples.running import EXAMPLES, at_broker, run, run_python, running
from tests.support.servers import wait_until

pytestmark = pytest.mark.slow


def states(platform: Settings, vin: str) -> list[str]:
    found = httpx.get(f"{platform.api}/api/v1/vins/{vin}/history", timeout=60, trust_env=False).raise_for_status().json()
    return [entry["state"] for entry in found["entries"]]


def test_a_vehicle_receives_in_order_and_acknowledges(platform: Settings, tmp_path: Path) -> None:
    vin, env = "EXAMPLEVEHICLE1", at_broker(platform)
    for name, size in (("first", 11), ("second", 22)):
        (tmp_path / name).write_bytes(bytes(size))
        lines = run_python("publisher.py", name, vin, "EXAMPLEVEHICLE2", folder=tmp_path, env=env)
        assert [re.sub(r"\d{18}|[0-9a-f]{8}", "…", line) for line in lines] == [
            "$SDV-FANOUT/data/data-… recorded …",
            "$SDV-FANOUT/trigger recorded …",
        ]
    wait_until(lambda: states(platform, vin) == ["pending", "pending"], what="both entries to be pending")

    with running("vehicle.py", vin, folder=tmp_path, env=env) as vehicle:
        got = vehicle.prints(2)
        assert [re.search(r": (\d+) bytes", line)[1] for line in got] == ["11", "22"]  # type: ignore[index]
        wait_until(lambda: states(platform, vin) == ["delivered", "delivered"], what="both messages to be acknowledged")


def test_the_publisher_prints_why_its_message_was_refused(platform: Settings, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x")
    done = run(sys.executable, EXAMPLES / "publisher.py", "data", "NOT A VIN", folder=tmp_path, env=at_broker(platform))

    assert done.returncode == 1, done.stderr
    assert 'refused ids[0] "NOT A VIN" must be' in done.stdout


def test_a_consumer_gets_the_newest_of_each_key_and_all_again_after_a_rewind(platform: Settings, tmp_path: Path) -> None:
    client_id, env = "EXAMPLECONSUMER1", at_broker(platform)
    publisher = PlatformClient(platform)
    try:
        for key, value in (("climate/seat", b"20"), ("lights", b"on"), ("climate/seat", b"22")):
            assert publisher.send(f"$ECQ/w/{client_id}/{key}", value)["status"] == "recorded"
        newest = ["lights = on", "climate/seat = 22"]
        with running("ecq_consumer.py", client_id, folder=tmp_path, env=env) as consumer:
            assert consumer.prints(2) == newest
            publisher.send(f"$ECQ/w/{client_id}/lights", b"off")
            assert consumer.prints(3) == [*newest, "lights = off"]
        with running("ecq_consumer.py", client_id, "--rewind", folder=tmp_path, env=env) as consumer:
            assert consumer.prints(2) == ["climate/seat = 22", "lights = off"]
    finally:
        publisher.close()
