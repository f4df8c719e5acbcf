"""Any MQTT client can act as platform or vehicle: here Mosquitto's command-line clients, byte for byte."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from redis import Redis

from manifold.contracts import keys, topics
from manifold.settings import Settings
from tests.support.servers import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("mosquitto_sub") is None, reason="mosquitto-clients is not installed: apt-get install mosquitto-clients"
    ),
]


def test_mosquitto_pub_acts_as_platform_and_mosquitto_sub_as_vehicle(platform: Settings, tmp_path: Path) -> None:
    vin, payload = "ANYCLIENT1", os.urandom(50_000)
    (tmp_path / "firmware").write_bytes(payload)
    trigger = json.dumps({"ids": [vin], "request_id": "task_any_1", "data_id": "any"})
    door = ["-h", platform.host, "-p", str(platform.mqtt_port), "-q", "1"]
    listen = ["mosquitto_sub", *door, "-i", vin, "-t", topics.request_filter("agent", vin), "-C", "1", "-N", "-W", "60"]
    publish = ["mosquitto_pub", *door, "-i", "sdv-pub-any", "-u", "sdv-pub-any", "-V", "5"]

    with (tmp_path / "got").open("wb") as got, Redis.from_url(platform.redis) as redis:
        vehicle = subprocess.Popen(listen, stdout=got)
        try:
            # It sends no heartbeat: a subscription after the batch would trigger nothing.
            wait_until(lambda: redis.hexists(keys.presence(vin), "subscribed"), what="the vehicle to subscribe")
            subprocess.run([*publish, "-t", topics.data_topic("any"), "-f", str(tmp_path / "firmware")], check=True)
            subprocess.run([*publish, "-t", topics.TRIGGER, "-m", trigger], check=True)
            wait_until(lambda: vehicle.poll() is not None, within_s=60, what="the vehicle to have its message")
        finally:
            vehicle.kill()

    assert (tmp_path / "got").read_bytes() == payload
