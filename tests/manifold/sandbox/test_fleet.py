"""The simulated fleet against a plain broker."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from manifold.contracts.errors import Permanent, Retryable
from manifold.contracts.messages import sha1_hex
from manifold.contracts.names import Owner, is_iso_3779_vin
from manifold.contracts.topics import request_topic
from manifold.messaging.mqtt import Message, Mqtt
from manifold.sandbox.fleet import Behaviour, BehaviourModel, Fleet, vins
from manifold.settings import Settings
from tests.support.servers import Server, free_port, start_mosquitto, stopping

BOUND_S = 60
PROMPT = Behaviour(think_s=(0.0, 0.0))


def run(scenario: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(BOUND_S):
            await scenario

    asyncio.run(bounded())


def broker_at(port: int) -> Settings:
    return Settings(mqtt_url=f"mqtt://127.0.0.1:{port}")


@asynccontextmanager
async def platform(port: int) -> AsyncIterator[Mqtt]:
    async with Mqtt(broker_at(port).mqtt, "sdv-test-fleet") as mqtt:
        await mqtt.wait_connected()
        yield mqtt


@asynccontextmanager
async def connected(
    broker: Server, fleet_vins: list[Owner], *, behaviour: Behaviour = PROMPT
) -> AsyncIterator[tuple[Mqtt, Fleet]]:
    """A platform client and an online fleet."""
    async with platform(broker.port) as mqtt, Fleet(broker_at(broker.port), fleet_vins, behaviour=behaviour) as fleet:
        await fleet.connect()
        yield mqtt, fleet


async def send(mqtt: Mqtt, vin: Owner, request_id: str, seq: int, payload: bytes = b"payload") -> None:
    await mqtt.publish(request_topic("agent", vin, request_id), payload, user_properties=[("seq", str(seq))])


async def send_to_each(mqtt: Mqtt, fleet: Fleet, request_id: str, seq: int = 1) -> None:
    for vin in fleet.vins:
        await send(mqtt, vin, request_id, seq)


def test_every_vin_has_a_check_digit_and_larger_fleets_extend_smaller_ones() -> None:
    hundred = vins(100, seed=7)

    assert len(set(hundred)) == 100
    assert all(is_iso_3779_vin(vin) for vin in hundred)
    assert vins(20, seed=7) == hundred[:20]
    assert vins(20, seed=8) != hundred[:20]
    assert vins(0, seed=7) == []


def test_a_negative_number_of_vehicles_is_refused() -> None:
    with pytest.raises(ValueError, match="count=-1"):
        vins(-1, seed=1)


def decisions(seed: int, *, messages_first: bool) -> list[float | bool | None]:
    model = BehaviourModel(
        seed, vins(1, 1)[0], Behaviour(stay_s=60, crash_share=0.5, clean_share=0.5, crash_before_ack_share=0.5)
    )
    if messages_first:
        for _ in range(10):
            model.think_s()
    drawn = [(model.stay_s(), model.crashes(), model.away_s(), model.starts_clean(), model.heartbeat_s()) for _ in range(20)]
    return [decision for round_ in drawn for decision in round_]


def test_a_seed_determines_decisions_for_any_number_of_messages() -> None:
    assert decisions(1, messages_first=False) == decisions(1, messages_first=True)
    assert decisions(1, messages_first=False) != decisions(2, messages_first=False)


def test_half_of_a_fleet_uses_each_protocol() -> None:
    protocols = [BehaviourModel(1, vin, Behaviour()).protocol for vin in vins(1000, 1)]

    assert 400 < protocols.count(5) < 600
    assert protocols.count(4) == 1000 - protocols.count(5)


@pytest.mark.parametrize(("v5_share", "seq"), [pytest.param(1.0, 42, id="5"), pytest.param(0.0, None, id="3.1.1")])
def test_a_message_is_recorded_with_its_seq_where_the_protocol_has_one(
    mosquitto: Server, v5_share: float, seq: int | None
) -> None:
    async def scenario() -> None:
        [vin] = vins(1, seed=100 + int(v5_share))
        behaviour = Behaviour(think_s=(0.0, 0.0), v5_share=v5_share)
        async with connected(mosquitto, [vin], behaviour=behaviour) as (mqtt, fleet):
            await send(mqtt, vin, "task_a_1", 42, b"bytes")
            await fleet.wait_for(lambda f: f.acknowledged, BOUND_S)
        [got] = fleet.received
        assert (got.vin, got.request_id, got.seq, got.dup) == (vin, "task_a_1", seq, False)
        assert (got.payload_sha1, got.size_bytes) == (sha1_hex(b"bytes"), 5)
        assert fleet.acknowledged == [got]

    run(scenario())


def test_a_vehicle_sends_online_after_subscribing_and_heartbeats_on_request(mosquitto: Server) -> None:
    async def scenario() -> None:
        [vin] = vins(1, seed=110)
        signs: asyncio.Queue[Message] = asyncio.Queue()
        async with platform(mosquitto.port) as mqtt, Fleet(broker_at(mosquitto.port), [vin], behaviour=PROMPT) as fleet:
            mqtt.on_message = signs.put_nowait
            await mqtt.subscribe(f"ecp/{vin}/+")
            await fleet.connect()
            assert (await signs.get()).topic == f"ecp/{vin}/online"
            await fleet.heartbeat()
            assert (await signs.get()).topic == f"ecp/{vin}/heartbeat"

    run(scenario())


def test_heartbeats_are_sent_periodically(mosquitto: Server) -> None:
    async def scenario() -> None:
        [vin] = vins(1, seed=111)
        beats: asyncio.Queue[Message] = asyncio.Queue()
        behaviour = Behaviour(heartbeat_s=0.05)
        async with platform(mosquitto.port) as mqtt, Fleet(broker_at(mosquitto.port), [vin], behaviour=behaviour) as fleet:
            mqtt.on_message = beats.put_nowait
            await mqtt.subscribe(f"ecp/{vin}/heartbeat")
            await fleet.connect()
            for _ in range(3):
                await beats.get()

    run(scenario())


def test_messages_sent_while_offline_arrive_with_the_resumed_session(mosquitto: Server) -> None:
    async def scenario() -> None:
        async with connected(mosquitto, vins(6, seed=120)) as (mqtt, fleet):
            await fleet.go_offline()
            assert fleet.online == []
            await send_to_each(mqtt, fleet, "task_a_1")
            assert fleet.received == []
            await fleet.connect()
            await fleet.wait_for(lambda f: len(f.acknowledged) == 6, BOUND_S)
            assert sorted(got.vin for got in fleet.received) == sorted(fleet.vins)

    run(scenario())


def test_a_clean_start_forgets_queued_messages(mosquitto: Server) -> None:
    async def scenario() -> None:
        async with connected(mosquitto, vins(6, seed=121)) as (mqtt, fleet):
            await fleet.go_offline()
            await send_to_each(mqtt, fleet, "task_a_1")
            await fleet.connect(clean_start=True)
            await send_to_each(mqtt, fleet, "task_a_2")
            await fleet.wait_for(lambda f: len(f.acknowledged) == 6, BOUND_S)
            assert {got.request_id for got in fleet.received} == {"task_a_2"}

    run(scenario())


def test_a_crash_before_the_ack_redelivers_the_message_with_dup(mosquitto: Server) -> None:
    async def scenario() -> None:
        thoughtful = Behaviour(think_s=(3600.0, 3600.0))
        async with connected(mosquitto, vins(6, seed=122), behaviour=thoughtful) as (mqtt, fleet):
            await send_to_each(mqtt, fleet, "task_a_1")
            await fleet.wait_for(lambda f: len(f.received) == 6, BOUND_S)
            await fleet.crash()
            assert fleet.counts["crashed"] == 6
            await fleet.connect()
            await fleet.wait_for(lambda f: len(f.received) == 12, BOUND_S)
            assert [got.dup for got in fleet.received] == [False] * 6 + [True] * 6
            assert fleet.acknowledged == []

    run(scenario())


def test_vehicles_crash_before_the_ack_and_return_as_modelled(mosquitto: Server) -> None:
    async def scenario() -> None:
        fragile = Behaviour(think_s=(0.0, 0.0), crash_before_ack_share=0.5, away_s=0.05)
        async with connected(mosquitto, vins(4, seed=123), behaviour=fragile) as (mqtt, fleet):
            for seq in range(10):
                await send_to_each(mqtt, fleet, f"task_a_{seq}", seq)
            every = {(vin, f"task_a_{seq}") for vin in fleet.vins for seq in range(10)}
            await fleet.wait_for(lambda f: {(got.vin, got.request_id) for got in f.acknowledged} == every, BOUND_S)
            assert fleet.counts["crashed"] > 0
            assert any(got.dup for got in fleet.received)

    run(scenario())


def test_vehicles_leave_and_return_as_modelled(mosquitto: Server) -> None:
    async def scenario() -> None:
        restless = Behaviour(stay_s=0.05, away_s=0.05, crash_share=0.5, clean_share=0.5)
        async with Fleet(broker_at(mosquitto.port), vins(10, seed=124), behaviour=restless) as fleet:
            await fleet.connect()
            await fleet.wait_for(lambda f: min(f.counts[what] for what in ("left", "crashed")) >= 10, BOUND_S)
            await fleet.wait_for(lambda f: f.counts["online"] > 20, BOUND_S)

    run(scenario())


def test_vehicles_reconnect_when_the_broker_returns(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = start_mosquitto(tmp_path)
        with stopping(broker):
            async with Fleet(broker_at(broker.port), vins(10, seed=125), behaviour=PROMPT) as fleet:
                await fleet.connect()
                await asyncio.to_thread(broker.kill)
                await fleet.wait_for(lambda f: not f.online, BOUND_S)
                with stopping(await asyncio.to_thread(start_mosquitto, tmp_path, port=broker.port)):
                    await fleet.wait_for(lambda f: len(f.online) == 10, BOUND_S)

    run(scenario())


def test_a_vehicle_told_to_stay_away_does_not_reconnect() -> None:
    async def scenario() -> None:
        async with Fleet(broker_at(free_port()), vins(1, seed=126)) as fleet:
            with pytest.raises(Retryable):
                await fleet.connect(within_s=0.05)
            await fleet.go_offline()
            tries = fleet.counts["cut off"]
            with pytest.raises(TimeoutError):
                await fleet.wait_for(lambda f: f.counts["cut off"] > tries, 0.5)

    run(scenario())


def test_a_fleet_without_a_broker_says_so() -> None:
    async def scenario() -> None:
        async with Fleet(broker_at(free_port()), vins(2, seed=127)) as fleet:
            with pytest.raises(Retryable, match=r"2 vehicles are not online at 127\.0\.0\.1:\d+ .*refused"):
                await fleet.connect(within_s=0.1)

    run(scenario())


def test_a_broker_behind_tls_is_refused_by_name() -> None:
    with pytest.raises(Permanent, match="mqtts://broker:8883"):
        Fleet(Settings(mqtt_url="mqtts://broker:8883"), vins(1, seed=1))


def test_five_hundred_vehicles_each_get_their_own_messages(mosquitto: Server) -> None:
    async def scenario() -> None:
        async with connected(mosquitto, vins(500, seed=128)) as (mqtt, fleet):
            assert fleet.online == fleet.vins
            await asyncio.gather(*(send(mqtt, vin, "task_a_1", seq) for seq, vin in enumerate(fleet.vins)))
            await fleet.wait_for(lambda f: len(f.acknowledged) == 500, BOUND_S)
            assert {got.vin for got in fleet.received} == set(fleet.vins)

    run(scenario())


def command(port: int, *arguments: str) -> str:
    environment = {"MANIFOLD_MQTT_PORT": str(port), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-m", "manifold.sandbox.fleet", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_the_command_drives_and_prints_totals(mosquitto: Server) -> None:
    output = command(mosquitto.port, "--vehicles", "5", "--seed", "129", "--minutes", "0.02")

    assert "5 vehicles: online" in output
    assert "0 messages received by 0 of them" in output


def test_the_command_prints_the_vins(mosquitto: Server) -> None:
    assert command(mosquitto.port, "--vehicles", "3", "--seed", "130", "--vins").split() == vins(3, 130)
