"""The MQTT client against a real broker."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from manifold.contracts.errors import Permanent, Retryable
from manifold.messaging import _reconnector
from manifold.messaging._reconnector import pause_after_loss
from manifold.messaging.mqtt import NO_SUBSCRIBERS, Message, Mqtt
from tests.support.servers import Server, free_port, start_mosquitto, stopping

BOUND_S = 60
DYNAMIC_SECURITY = next(iter(sorted(Path("/usr").glob("lib*/**/mosquitto_dynamic_security.so"))), None)
PACKET_TOO_LARGE = 0x95
LOOPS = [pytest.param(asyncio.new_event_loop, id="asyncio"), pytest.param(uvloop.new_event_loop, id="uvloop")]
Factory = Callable[[], asyncio.AbstractEventLoop]


def run(scenario: Awaitable[None], loop_factory: Factory = asyncio.new_event_loop) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(BOUND_S):
            await scenario

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(bounded())


def url(port: int) -> str:
    return f"mqtt://127.0.0.1:{port}"


class Inbox:
    """Collect messages, acknowledging them or not."""

    def __init__(self, client: Mqtt, *, acknowledge: bool = True) -> None:
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.client, self.acknowledge = client, acknowledge
        client.on_message = self._take

    def _take(self, message: Message) -> None:
        self.messages.put_nowait(message)
        if self.acknowledge:
            self.client.ack(message)


@asynccontextmanager
async def cuttable(port: int) -> AsyncIterator[tuple[int, Callable[[], None], asyncio.Event]]:
    """A pipe to the broker: its port, a function to cut every connection, and a gate that holds back the broker's replies."""
    writers: list[asyncio.StreamWriter] = []
    answering = asyncio.Event()
    answering.set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event | None) -> None:
        try:
            while chunk := await reader.read(65536):
                if gate is not None:
                    await gate.wait()
                writer.write(chunk)
        except OSError:
            pass
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
        writers.extend([writer, there_writer])
        await asyncio.gather(copy(reader, there_writer, None), copy(there_reader, writer, answering))

    def cut() -> None:
        for writer in writers:
            writer.transport.abort()
        writers.clear()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], cut, answering
    finally:
        server.close()
        cut()


async def until(question: Callable[[], bool]) -> None:
    while not question():  # noqa: ASYNC110  # polled, because no event reports it; bounded by `run`
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_messages_arrive_in_publishing_order(mosquitto: Server, loop_factory: Factory) -> None:
    async def scenario() -> None:
        async with (
            Mqtt(url(mosquitto.port), "in") as receiver,
            Mqtt(url(mosquitto.port), "out") as sender,
        ):
            received = Inbox(receiver)
            await receiver.subscribe("order/#")
            await sender.wait_connected()
            codes = await asyncio.gather(*(sender.publish("order/t", str(n).encode()) for n in range(2000)))
            assert set(codes) == {0}
            assert [(await received.messages.get()).payload for _ in range(2000)] == [str(n).encode() for n in range(2000)]

    run(scenario(), loop_factory)


def test_a_publish_without_subscribers_is_reported(mosquitto: Server) -> None:
    async def scenario() -> None:
        async with Mqtt(url(mosquitto.port), "lonely") as sender:
            await sender.wait_connected()
            assert await sender.publish("nobody/listens", b"?") == NO_SUBSCRIBERS
            assert await sender.publish("nobody/listens", b"?", qos=0) == 0

    run(scenario())


def test_a_message_keeps_its_properties_and_a_megabyte_of_payload(mosquitto: Server) -> None:
    async def scenario() -> None:
        async with Mqtt(url(mosquitto.port), "props") as client:
            received = Inbox(client)
            await client.subscribe("props/t")
            payload = bytes(range(256)) * 4096
            pairs = [("seq", "1"), ("data-id", "d"), ("seq", "2")]
            await client.publish(
                "props/t", payload, user_properties=pairs, correlation_data=b"\0c", response_topic="sdv/receipt/x", expiry_s=60
            )
            got = await received.messages.get()
            assert (got.payload, got.user_properties) == (payload, pairs)
            assert (got.response_topic, got.correlation_data, got.qos, got.dup) == ("sdv/receipt/x", b"\0c", 1, False)

    run(scenario())


def test_unacknowledged_messages_are_redelivered_and_others_are_not(mosquitto: Server) -> None:
    async def scenario() -> None:
        async with Mqtt(url(mosquitto.port), "giver") as sender:
            await sender.wait_connected()
            async with Mqtt(url(mosquitto.port), "keeper", clean_start=False, session_expiry_s=60) as first:
                received = Inbox(first, acknowledge=False)
                await first.subscribe("again/t")
                for payload in (b"a", b"b"):
                    await sender.publish("again/t", payload)
                a, b = await received.messages.get(), await received.messages.get()
                assert first.ack(a)
            async with Mqtt(url(mosquitto.port), "keeper", clean_start=False, session_expiry_s=60) as second:
                received = Inbox(second)
                again = await received.messages.get()
                assert (again.payload, again.dup) == (b.payload, True)
                await sender.publish("again/t", b"c")  # the subscription survived with the session
                assert (await received.messages.get()).payload == b"c"
                assert not second.ack(Message("again/t", b"a", mid=a.mid, connection=99))  # an ack of another connection

    run(scenario())


def test_a_publish_on_a_lost_connection_is_retryable_and_not_resent_later(mosquitto: Server) -> None:
    async def scenario() -> None:
        async with cuttable(mosquitto.port) as (port, cut, answering), Mqtt(url(mosquitto.port), "witness") as witness:
            received = Inbox(witness)
            await witness.subscribe("lost/t")
            async with Mqtt(url(port), "loser", clean_start=False, session_expiry_s=60) as sender:
                await sender.wait_connected()
                answering.clear()
                lost = sender.publish("lost/t", b"once")
                assert (await received.messages.get()).payload == b"once"  # the broker has it, and its PUBACK is held back
                cut()
                with pytest.raises(Retryable):
                    await lost
                with pytest.raises(Retryable):
                    await sender.publish("lost/t", b"while away")
                answering.set()
                await sender.wait_connected()
                assert await sender.publish("lost/t", b"after") == 0
                assert (await received.messages.get()).payload == b"after"

    run(scenario())


def test_subscriptions_are_restored_after_the_broker_lost_its_state(tmp_path: Path) -> None:
    port = free_port()

    async def scenario(broker: Server) -> None:
        async with Mqtt(url(port), "phoenix", clean_start=False, session_expiry_s=60) as client:
            received = Inbox(client)
            await client.subscribe("one/t")
            await client.subscribe("two/t")
            broker.kill()
            await until(lambda: not client.connected.is_set())
            assert not client.ready
            with stopping(await asyncio.to_thread(start_mosquitto, tmp_path / "second", port=port)):
                await until(lambda: client.ready)
                await client.publish("one/t", b"1")
                await client.publish("two/t", b"2")
                assert [(await received.messages.get()).payload for _ in range(2)] == [b"1", b"2"]

    with stopping(start_mosquitto(tmp_path / "first", port=port)) as broker:
        run(scenario(broker))


def test_a_service_may_start_before_its_broker(tmp_path: Path) -> None:
    port = free_port()

    async def scenario() -> None:
        async with Mqtt(url(port), "early") as client:
            confirmed = client.subscribe("early/t")
            assert not client.ready
            with stopping(await asyncio.to_thread(start_mosquitto, tmp_path, port=port)):
                await confirmed
                assert client.ready

    run(scenario())


def test_a_failing_handler_or_an_oversized_publish_does_not_stop_the_client(tmp_path: Path) -> None:
    seen: list[bytes] = []

    def break_on_first(message: Message) -> None:
        seen.append(message.payload)
        if len(seen) == 1:
            raise ValueError("on purpose")

    async def scenario(broker: Server) -> None:
        async with Mqtt(url(broker.port), "sturdy") as client:
            client.on_message = break_on_first
            await client.subscribe("sturdy/t")
            for payload in (b"1", b"2"):
                await client.publish("sturdy/t", payload)
            await until(lambda: seen == [b"1", b"2"])
            # Over the broker's limit: it sends a reason code that is invalid in a PUBACK, and closes the connection.
            assert await client.publish("sturdy/t", b"x" * (5 << 20)) == PACKET_TOO_LARGE
            await client.wait_connected()

    with stopping(start_mosquitto(tmp_path / "broker", extra="message_size_limit 4000000")) as broker:
        run(scenario(broker))


@pytest.mark.skipif(DYNAMIC_SECURITY is None, reason="this Mosquitto cannot refuse a subscription: it lacks its dynamic security")
@pytest.mark.slow
def test_a_refused_subscription_is_retried_on_a_new_connection(tmp_path: Path) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"defaultACLAccess": {"subscribe": False}}))
    plugin = f"plugin {DYNAMIC_SECURITY}\nplugin_opt_config_file {rules}"

    async def scenario(port: int) -> None:
        async with Mqtt(url(port), "denied", clean_start=False, session_expiry_s=60) as client:
            with pytest.raises(Permanent, match=r"the broker refuses denied some/t \(not_authorized\)"):
                await client.subscribe("some/t")
            first = client._reconnector.number
            await until(lambda: client._reconnector.number > first + 1)  # repeatedly
            assert not client.ready

    with stopping(start_mosquitto(tmp_path, extra=plugin)) as broker:
        run(scenario(broker.port))


def test_an_unresponsive_broker_is_dropped_and_retried() -> None:
    async def scenario() -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            async with Mqtt(url(silent.getsockname()[1]), "patient") as client:
                connection, _ = await asyncio.to_thread(silent.accept)
                connection.close()
                again, _ = await asyncio.to_thread(silent.accept)
                again.close()
                assert not client.connected.is_set()

    run(scenario())


def test_a_publish_over_the_broker_limit_fails_alone_and_names_the_limit(tmp_path: Path) -> None:
    async def scenario(broker: Server) -> None:
        async with Mqtt(url(broker.port), "large") as client:
            received = Inbox(client)
            await client.subscribe("large/t")
            small, too_large = asyncio.gather(*(client.publish("large/t", b"1") for _ in range(5))), b"x" * 100_000
            with pytest.raises(Permanent, match=r"a packet of 1000\d\d bytes is over the 100000 that the broker .* takes"):
                await client.publish("large/t", too_large)
            with pytest.raises(Permanent, match="over the 100000"):
                await client.publish("large/t", bytes(1 << 28))  # more than MQTT can encode
            assert await client.publish("large/t", too_large[:-100]) == 0
            assert await small == [0] * 5
            assert {(await received.messages.get()).connection for _ in range(6)} == {1}

    with stopping(start_mosquitto(tmp_path / "broker", extra="max_packet_size 100000")) as broker:
        run(scenario(broker))


def test_retained_messages_are_not_new(mosquitto: Server) -> None:
    async def scenario() -> None:
        async with Mqtt(url(mosquitto.port), "hoarder") as client:
            await client.wait_connected()
            await client.publish("retained/a", b"old", retain=True)
            received = Inbox(client)
            await client.subscribe("retained/#")
            await client.publish("retained/b", b"new", retain=True)
            got = await received.messages.get()
            assert (got.payload, got.retain) == (b"new", False)
            for name in "ab":
                await client.publish(f"retained/{name}", b"", retain=True)

    run(scenario())


def test_a_broker_that_does_not_answer_a_connect_is_called_silent(mosquitto: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_reconnector, "_CONNACK_WAIT_S", 0.2)

    async def scenario() -> None:
        async with cuttable(mosquitto.port) as (port, _, answering):
            answering.clear()
            async with Mqtt(url(port), "ignored") as client:
                await until(lambda: client.problem != "")
                assert client.problem == f"127.0.0.1:{port} did not accept ignored: no CONNACK within 0.2 s"
            answering.set()

    run(scenario())


@pytest.mark.parametrize(
    ("before_s", "lived_s", "pause_s"),
    [(0.1, 0.01, 0.2), (0.2, 0.5, 0.4), (3.2, 2, 5), (5, 9, 5), (5, 60, 0.1), (0.1, 60, 0.1)],
)
def test_connections_that_break_early_reconnect_with_backoff(before_s: float, lived_s: float, pause_s: float) -> None:
    assert pause_after_loss(before_s, lived_s) == pause_s


@pytest.mark.parametrize(
    "wrong",
    ["127.0.0.1:1883", "http://h:1", "mqtt://", "mqtt://h:65536", "mqtt://h:0", "mqtt://h:x", "mqtt://[::1:1883", "mqtt://:1883"],
)
def test_an_invalid_url_is_named(wrong: str) -> None:
    with pytest.raises(Permanent, match="mqtt://host:1883"):
        Mqtt(wrong, "c")
