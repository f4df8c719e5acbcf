"""A real Prometheus with the project's configuration over a real platform: every expression is valid and has data."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial

import httpx
import pytest
from redis import Redis

from manifold.contracts import keys, topics
from manifold.settings import Settings
from tests.infra.prometheus import ask, scraping, targets
from tests.infra.seen import expressions
from tests.support.servers import Server, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed: apt-get install prometheus"),
]

# What a platform shows that has served one vehicle and refused one message.
QUIET = (
    "rule ",  # alert expressions are empty on a healthy platform
    "delivery, What comes back A",  # nothing was returned
    "recorder, Receipts",  # nobody requested one
    "delivery, Events that were not handled one by one E",  # EMQX's REST API is not used
    "fleet, Connections A",  # EMQX only
    "capacity, Messages of the broker",
    "campaigns, ",  # nobody proposes one
    "signals, ",
)


@pytest.fixture(scope="module")
def prometheus(platform: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Prometheus that scrapes every service of the platform each second."""
    with scraping(platform, tmp_path_factory.mktemp("prometheus")) as server:
        yield server


@pytest.fixture(scope="module")
def served(platform: Settings, prometheus: Server) -> None:
    """A platform with one delivered message, one refused message, and one API request."""
    wait_until(
        lambda: len(ask(prometheus, 'up{job="manifold"} == 1')) == len(targets(platform)), what="all services to be scraped"
    )
    door = ["-h", platform.host, "-p", str(platform.mqtt_port), "-q", "1"]
    publish = ["mosquitto_pub", *door, "-i", "sdv-pub-seen", "-u", "sdv-pub-seen", "-V", "5"]
    trigger = json.dumps({"ids": ["SEEN1"], "request_id": "task_seen_1", "data_id": "seen"})
    listen = ["mosquitto_sub", *door, "-i", "SEEN1", "-t", topics.request_filter("agent", "SEEN1"), "-C", "1", "-N", "-W", "60"]
    vehicle = subprocess.Popen(listen, stdout=subprocess.DEVNULL)
    try:
        with Redis.from_url(platform.redis) as redis:
            wait_until(lambda: redis.hexists(keys.presence("SEEN1"), "subscribed"), what="the vehicle to subscribe")
        for topic, message in ((topics.data_topic("seen"), "bytes"), (topics.TRIGGER, trigger), (topics.TRIGGER, "no JSON")):
            subprocess.run([*publish, "-t", topic, "-m", message], check=True)
        wait_until(lambda: vehicle.poll() is not None, what="the vehicle to have its message")
    finally:
        vehicle.kill()
    httpx.get(f"http://{platform.host}:{platform.api_port}/api/v1/fleet", timeout=20)


def test_every_service_is_scraped_and_up(platform: Settings, prometheus: Server) -> None:
    wait_until(lambda: len(ask(prometheus, 'up{job="manifold"} == 1')) == len(targets(platform)), what="all services to be up")


def test_every_expression_is_valid_and_has_data_on_a_busy_platform(prometheus: Server, served: None) -> None:
    asked = expressions()
    empty = {where for where, expression in asked.items() if not ask(prometheus, expression) and not where.startswith(QUIET)}
    for where in empty:  # a rate needs two scrapes
        wait_until(partial(ask, prometheus, asked[where]), what=f"an answer to {where}: {asked[where]}")


def test_no_alert_fires_on_a_healthy_platform(prometheus: Server, served: None) -> None:
    alerts = httpx.get(f"http://127.0.0.1:{prometheus.port}/api/v1/alerts", timeout=20).json()["data"]["alerts"]
    assert [alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"] == []
