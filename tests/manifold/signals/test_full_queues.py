"""A queue that rejects publishes because it is full: its messages wait, health and log name it, and others pass once."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from manifold.contracts.signals import topology
from manifold.settings import Settings
from tests.manifold.signals.gateway import Door, Gateway, body_of
from tests.manifold.signals.test_faults import drain, health, send_many
from tests.support.rabbitmq import ctl
from tests.support.servers import wait_until

pytestmark = pytest.mark.slow
IN_THE_WAY = body_of("in-the-way")


@contextmanager
def full(rabbitmq: Settings, gateway: Gateway, queue: str) -> Iterator[None]:
    """Fill the queue with one message and let it reject further ones during the block."""
    gateway.channel.basic_publish("", queue, IN_THE_WAY)
    limit = '{"max-length": 1, "overflow": "reject-publish"}'
    ctl(rabbitmq, "set_policy", "--apply-to", "queues", "full", f"^{re.escape(queue)}$", limit)
    try:
        yield
    finally:
        ctl(rabbitmq, "clear_policy", "full")


def rejected(door: Door, queue: str) -> int:
    """Publishes of the service that the queue has rejected."""
    families = text_string_to_metric_families(httpx.get(f"{door.settings.signals}/metrics").text)
    samples = [one for family in families for one in family.samples if one.name == "signals_rejected_publishes_total"]
    return sum(int(one.value) for one in samples if one.labels["queue"] == queue)


def send_in_turns(gateway: Gateway, count: int) -> set[str]:
    """Send this many malformed messages, each followed by a good one; return the devices of the good ones."""
    names = set[str]()
    for number in range(count):
        gateway.send(f"no JSON {number}".encode(), {})
        names |= send_many(gateway, 1, f"turn-{number}")
    return names


def wait_for_tries(door: Door, queue: str, *, messages: int, tries: int = 3) -> None:
    wait_until(lambda: rejected(door, queue) >= messages * tries, what=f"{tries} tries to publish to {queue}")


def wait_until_settled(door: Door, gateway: Gateway) -> None:
    wait_until(lambda: health(door)["healthy"] and health(door)["in_hand"] == gateway.count(topology.RAW) == 0)


def test_a_full_dead_letter_queue_neither_stops_nor_repeats_good_signals(
    own_door: Door, rabbitmq: Settings, gateway: Gateway
) -> None:
    """Also if more messages are held back than the prefetch, and after a restart."""
    own_door.with_settings(signals_prefetch=10).start()
    with full(rabbitmq, gateway, topology.DEAD):
        names = send_in_turns(gateway, 4)
        assert drain(gateway, 4) == dict.fromkeys(names, 1)
        wait_until(lambda: topology.DEAD in " ".join(health(own_door)["problems"]), what="health names the queue")
        wait_for_tries(own_door, topology.DEAD, messages=4)

        assert gateway.count(topology.PROCESSED) == 0
        assert health(own_door)["in_hand"] == gateway.count(topology.DEAD) + 3 == 4
        assert topology.DEAD in next(line for line in own_door.log.splitlines() if "waiting for dependency" in line)
        assert len(own_door.recorded()) == 8
        for number in range(41):
            gateway.send(f"no JSON behind them {number}".encode(), {})
        names = send_many(gateway, 25, "behind-them")
        assert drain(gateway, 25) == dict.fromkeys(names, 1)
        wait_until(lambda: health(own_door)["in_hand"] == 45)
        assert len(own_door.recorded()) == 74

        own_door.stop()
        assert gateway.count(topology.RAW) == 45
        own_door.start(healthy=False)
        wait_for_tries(own_door, topology.DEAD, messages=45, tries=1)
    wait_until(lambda: gateway.count(topology.DEAD) == 46, what="the dead letters, and the one that filled the queue")
    wait_until_settled(own_door, gateway)

    assert gateway.count(topology.PROCESSED) == 0
    assert "rabbitmq unavailable" not in own_door.log


def test_a_full_processed_queue_stops_no_dead_letters_and_repeats_no_signals(
    own_door: Door, rabbitmq: Settings, gateway: Gateway
) -> None:
    """Also if more signals are held back than the prefetch. A signal keeps its idempotency key meanwhile."""
    body = body_of("turn-again")
    own_door.with_settings(signals_prefetch=10).start()
    with full(rabbitmq, gateway, topology.PROCESSED):
        names = send_in_turns(gateway, 3) | {"turn-again"}
        gateway.send_signed(body, device="turn-again")
        wait_until(lambda: gateway.count(topology.DEAD) == 3, what="the dead letters")
        wait_until(lambda: topology.PROCESSED in " ".join(health(own_door)["problems"]), what="health names the queue")
        gateway.send_signed(body, device="turn-again")
        wait_for_tries(own_door, topology.PROCESSED, messages=4)
        wait_until(lambda: health(own_door)["in_hand"] == 4)
        assert gateway.count(topology.PROCESSED) == 1
        names |= send_many(gateway, 41, "held-back")
        for number in range(25):
            gateway.send(f"no JSON behind them {number}".encode(), {})
        wait_until(lambda: gateway.count(topology.DEAD) == 28, what="the dead letters")
        wait_until(lambda: health(own_door)["in_hand"] == 45)
    wait_until_settled(own_door, gateway)

    assert drain(gateway, 46) == dict.fromkeys(names | {"in-the-way"}, 1)
    assert gateway.count(topology.PROCESSED) == 0
    assert gateway.count(topology.DEAD) == 28
    assert len(own_door.recorded()) == 73
