"""The tap in front of a real Mosquitto: bytes, kills, takeovers, rights."""

import json
import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from manifold.contracts.topics import RECORDER_FILTERS
from manifold.sandbox.tap.packets import packet, string
from manifold.sandbox.tap.properties import read_properties
from manifold.settings import Settings
from tests.manifold.sandbox.tap.conftest import TapServer
from tests.manifold.sandbox.tap.raw_connection import (
    CONNACK,
    DISCONNECT,
    PINGRESP,
    PUBACK,
    PUBLISH,
    SUBACK,
    Got,
    RawConnection,
    connect,
    puback,
    publish,
    subscribe,
    user_properties,
)
from tests.support.servers import answers, free_port, start_mosquitto, start_tap, stopping, wait_until


def topic_of(vin: str, request_id: str = "r1") -> str:
    return f"agent/{vin}/proxy/request/{request_id}"


class Platform:
    """The dispatcher of a test, and the events that it receives about one vehicle."""

    def __init__(self, port: int, vin: str) -> None:
        self.vin, self.sent = vin, 0
        self.listener = RawConnection(port)
        self.listener.open(f"sdv-watch-{vin}", username="sdv-dispatcher")
        self.listener.listen(f"$SDV-EVT/+/{vin}")
        self.publisher = RawConnection(port)
        self.publisher.open(f"sdv-mouth-{vin}", username="sdv-dispatcher")

    def send(self, seq: int, payload: bytes = b"hello") -> Got:
        """Publish as the dispatcher does; return its PUBACK."""
        self.sent += 1
        properties = user_properties(seq=str(seq), data_id="d1")
        self.publisher.send(publish(topic_of(self.vin), payload, mid=self.sent, properties=properties))
        return self.publisher.expect(PUBACK)

    def event(self) -> tuple[str, dict[str, object]]:
        """The next event: its kind and its fields."""
        got = self.listener.expect(PUBLISH)
        self.listener.send(puback(got.mid))
        return got.topic.split("/")[1], json.loads(got.payload)

    def until(self, kind: str) -> dict[str, object]:
        """The next event of this kind."""
        while (event := self.event())[0] != kind:
            pass
        return event[1]

    def acked_seq(self) -> str:
        """The seq of the next acknowledgement."""
        fields = self.until("acked")
        props = fields["pub_props"]
        assert isinstance(props, dict)
        return str(props["User-Property"]["seq"])

    def close(self) -> None:
        self.listener.close()
        self.publisher.close()


@contextmanager
def platform(port: int, vin: str) -> Iterator[Platform]:
    it = Platform(port, vin)
    try:
        yield it
    finally:
        it.close()


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 1 << 20, 9 << 20], ids=lambda size: f"{size} bytes")
def test_payloads_of_any_size_pass_unchanged_in_any_split(tap_server: TapServer, vin: str, size: int) -> None:
    chance = random.Random(size)
    payload = chance.randbytes(size)
    with platform(tap_server.port, vin) as dispatcher, RawConnection(tap_server.port, version=4) as vehicle:
        vehicle.open(vin)
        vehicle.listen(topic_of(vin, "+"))
        data = publish(topic_of(vin), payload, properties=user_properties(seq="7"))

        def send() -> None:
            at = 0
            while at < len(data):  # small pieces at both ends, larger ones between
                step = chance.choice((1, 2, 3, 7)) if at < 90 or at > len(data) - 20 else chance.randint(1, 1 << 18)
                dispatcher.publisher.send(data[at : at + step])
                at += step

        sender = threading.Thread(target=send)
        sender.start()
        got = vehicle.expect(PUBLISH)
        sender.join()
        vehicle.send(puback(got.mid))

        assert got.payload == payload
        assert dispatcher.acked_seq() == "7"


def test_the_client_gets_the_bytes_of_the_broker_unchanged(tap_server: TapServer, vin: str) -> None:
    def talk(port: int) -> list[bytes]:
        bodies: list[bytes] = []
        with RawConnection(port) as wire:
            bodies.append(wire.open(vin, username="sdv-dispatcher").body)
            bodies.append(wire.listen(topic_of(vin, "+")).body)  # a vehicle's client id
            for mid in range(1, 20):
                properties = user_properties(n=str(mid))
                wire.send(publish(topic_of(vin), b"p" * mid * 100, mid=mid, properties=properties), b"\xc0\0")
                answers = sorted((got.first, got.body) for got in (wire.next() for _ in range(3)))  # in any order
                bodies.extend(bytes((first,)) + body for first, body in answers)
                wire.send(puback(mid))
        return bodies

    assert talk(tap_server.port) == talk(tap_server.settings.broker_port)


def test_many_packets_in_one_write_are_all_seen(tap_server: TapServer, vin: str) -> None:
    with platform(tap_server.port, vin) as dispatcher, RawConnection(tap_server.port, version=4) as vehicle:
        vehicle.send(connect(vin, 4), subscribe(topic_of(vin, "+"), 4))
        vehicle.expect(SUBACK)
        for seq in range(1, 21):
            dispatcher.send(seq)
        mids = [vehicle.expect(PUBLISH).mid for _ in range(20)]
        vehicle.send(*(puback(mid) for mid in mids))

        assert [dispatcher.acked_seq() for _ in range(20)] == [str(seq) for seq in range(1, 21)]


def test_the_connected_event_reaches_the_broker_before_the_connack(tap_server: TapServer, vin: str) -> None:
    with platform(tap_server.port, vin) as dispatcher:
        dispatcher.listener.send(subscribe(f"ecp/{vin}/online", mid=2))
        dispatcher.listener.expect(SUBACK)
        for _ in range(30):
            with RawConnection(tap_server.port, version=4) as vehicle:
                vehicle.open(vin)
                vehicle.send(publish(f"ecp/{vin}/online", b"", 4))
                heard = [dispatcher.listener.expect(PUBLISH) for _ in range(2)]
                dispatcher.listener.send(*(puback(got.mid) for got in heard))
            dispatcher.until("disconnected")

            assert [got.topic.split("/")[0] for got in heard] == ["$SDV-EVT", "ecp"]


@pytest.mark.parametrize("version", [4, 5])
def test_a_killed_tap_matches_the_acks_of_redelivered_messages(own_tap_server: TapServer, vin: str, version: int) -> None:
    server = own_tap_server
    with platform(server.port, vin) as dispatcher:
        vehicle = RawConnection(server.port, version=version)
        vehicle.open(vin, clean=False, expiry_s=300)
        vehicle.listen(topic_of(vin, "+"))
        dispatcher.send(1)
        dispatcher.send(2)
        mids = [vehicle.expect(PUBLISH).mid for _ in range(2)]
        server.tap.kill()
    server.restart_tap()

    with platform(server.port, vin) as dispatcher, RawConnection(server.port, version=version) as vehicle:
        assert vehicle.open(vin, clean=False, expiry_s=300).body[0] == 1
        again = [vehicle.expect(PUBLISH) for _ in range(2)]
        vehicle.send(*(puback(got.mid) for got in again))

        assert [(got.mid, got.dup) for got in again] == [(mid, True) for mid in mids]
        first = dispatcher.until("acked")
        assert (first["from_clientid"], isinstance(first["publish_received_at"], int)) == (
            (f"sdv-mouth-{vin}", True) if version == 4 else ("undefined", False)
        )
        assert dispatcher.acked_seq() == "2"


def test_a_message_queued_for_an_absent_vehicle_survives_a_tap_restart(own_tap_server: TapServer, vin: str) -> None:
    server = own_tap_server
    with platform(server.port, vin) as dispatcher:
        with RawConnection(server.port, version=4) as vehicle:
            vehicle.open(vin, clean=False)
            vehicle.listen(topic_of(vin, "+"))
        dispatcher.until("disconnected")
        assert dispatcher.send(41).reason == 0
        server.tap.kill()
    server.restart_tap()

    with platform(server.port, vin) as dispatcher, RawConnection(server.port, version=4) as vehicle:
        vehicle.open(vin, clean=False)
        vehicle.send(puback(vehicle.expect(PUBLISH).mid))

        assert dispatcher.acked_seq() == "41"


def test_a_tap_that_loses_the_broker_reconnects(own_tap_server: TapServer, vin: str) -> None:
    server = own_tap_server
    with RawConnection(server.port) as vehicle:
        vehicle.open(vin)
        server.broker.kill()
        with pytest.raises(EOFError):
            vehicle.next()
    server.restart_broker()
    wait_until(lambda: answers(f"http://127.0.0.1:{server.settings.tap_port}/healthz"), what="the tap to be healthy again")

    with platform(server.port, vin) as dispatcher, RawConnection(server.port) as vehicle:
        vehicle.open(vin)

        assert dispatcher.until("connected")["clientid"] == vin


def test_a_stopped_tap_reports_the_clients_it_disconnected(own_tap_server: TapServer, vin: str) -> None:
    server = own_tap_server
    with RawConnection(server.settings.broker_port) as listener:
        listener.open("sdv-ears", username="sdv-dispatcher")
        listener.listen("$SDV-EVT/disconnected/#")
        with RawConnection(server.port) as vehicle:
            vehicle.open(vin)
            server.tap.stop()

        assert json.loads(listener.expect(PUBLISH).payload)["reason"] == "server_shutting_down"


def test_any_publisher_user_name_may_publish_batches_and_read_its_receipts(tap_server: TapServer, vin: str) -> None:
    name = f"sdv-pub-{vin}"[:40]
    with RawConnection(tap_server.port) as publisher, RawConnection(tap_server.port) as recorder:
        recorder.open(f"sdv-recorder-{vin}", username="sdv-recorder")
        recorder.listen("$SDV-FANOUT/#")
        publisher.open(f"sdv-platform-{vin}", username=name)
        publisher.listen(f"sdv/receipt/{name}/1")
        publisher.send(publish("$SDV-FANOUT/trigger", b"{}", properties=user_properties(seq="1")))
        trigger = recorder.expect(PUBLISH)
        recorder.send(publish(f"sdv/receipt/{name}/1", b"yes"))

        assert (trigger.topic, trigger.payload) == ("$SDV-FANOUT/trigger", b"{}")
        assert publisher.expect(PUBLISH).payload == b"yes"


@pytest.mark.parametrize(
    "topic",
    [
        *("$SDV-FANOUT/trigger", "$SDV-FANOUT/data/d1", "$SDV-EVT/acked/V"),
        *("ecp/other/online", "agent/other/proxy/request/r1", "$ECQ/w/x/y", "$ECQ/r/other", "$ECQ/other/y"),
    ],
)
@pytest.mark.parametrize("username", [None, "sdv-tap", "someone"])
def test_a_vehicle_may_not_publish_for_others(tap_server: TapServer, topic: str, username: str | None) -> None:
    with RawConnection(tap_server.port) as vehicle:
        vehicle.open("vin-that-speaks-for-others", username=username)
        vehicle.send(publish(topic, b"x"))

        assert vehicle.expect(PUBACK).reason == 0x87


def test_a_vehicle_receives_only_its_own_topics(tap_server: TapServer, vin: str) -> None:
    with (
        platform(tap_server.port, vin) as dispatcher,
        RawConnection(tap_server.port) as vehicle,
        RawConnection(tap_server.port) as spy,
    ):
        vehicle.open(vin)
        vehicle.listen(topic_of(vin, "+"))
        spy.open(f"spy-{vin}"[:40])
        spy.listen("#")
        spy.send(subscribe("$SDV-EVT/#", mid=2), subscribe(topic_of(vin, "+"), mid=3))
        dispatcher.send(1)
        vehicle.expect(PUBLISH)
        spy.send(b"\xc0\0")

        while (got := spy.next()).kind != 13:
            assert got.kind == SUBACK


@pytest.mark.parametrize("version", [4, 5])
def test_only_api_and_campaigns_users_may_publish_orders_to_campaigns(tap_server: TapServer, vin: str, version: int) -> None:
    users = {
        f"sdv-pub-{vin}": "sdv-pub-a",
        f"sdv-listener-{vin}": "sdv-listener",
        f"sdv-dispatcher-{vin}": "sdv-dispatcher",
        vin[:60]: None,
        f"o{vin}"[:60]: "sdv-campaigner",
        f"sdv-api-{vin}": "sdv-api",
        f"sdv-campaigns-{vin}": "sdv-campaigns",
    }
    with ExitStack() as stack:
        recorder = stack.enter_context(RawConnection(tap_server.port))
        recorder.open(f"sdv-recorder-{vin}", username="sdv-recorder")
        recorder.listen("$SDV-FANOUT/#")
        for client_id, username in users.items():
            wire = stack.enter_context(RawConnection(tap_server.port, version=version))
            wire.open(client_id, username=username)
            wire.send(publish("$SDV-FANOUT/campaign", client_id.encode(), version))
            wire.expect(PUBACK)
        wire.listen("sdv/receipt/sdv-campaigns/1")
        recorder.send(publish("sdv/receipt/sdv-campaigns/1", b"yes"))

        assert wire.expect(PUBLISH).payload == b"yes"
        assert [recorder.expect(PUBLISH).payload for _ in range(2)] == [
            f"sdv-{user}-{vin}".encode() for user in ("api", "campaigns")
        ]
        recorder.send(b"\xc0\0")
        assert recorder.next().kind in (PUBACK, PINGRESP)


def test_the_api_rewinds_and_publishes_neither_triggers_nor_writes(tap_server: TapServer, vin: str) -> None:
    with RawConnection(tap_server.port) as recorder, RawConnection(tap_server.port) as api:
        recorder.open(f"sdv-recorder-{vin}", username="sdv-recorder")
        for topic_filter in RECORDER_FILTERS:
            recorder.listen(topic_filter)
        api.open(f"sdv-api-{vin}", username="sdv-api")
        for topic in ("$SDV-FANOUT/trigger", "$SDV-FANOUT/data/d", f"$ECQ/w/{vin}/a", f"$ECQ/r/{vin}"):
            api.send(publish(topic, topic.encode()))
            api.expect(PUBACK)

        assert recorder.expect(PUBLISH).payload == f"$ECQ/r/{vin}".encode()
        recorder.send(b"\xc0\0")
        assert recorder.next().kind in (PUBACK, PINGRESP)


@pytest.mark.parametrize("version", [4, 5])
def test_a_vehicle_answers_campaigns_only_on_its_own_topic(tap_server: TapServer, vin: str, version: int) -> None:
    own = vin[:60]
    answer = b'{"seq": 7, "status": "done"}'
    with ExitStack() as stack:
        recorder, vehicle, other, publisher = (
            stack.enter_context(RawConnection(tap_server.port, version=v)) for v in (5, version, version, version)
        )
        recorder.open(f"sdv-recorder-{vin}", username="sdv-recorder")
        assert recorder.listen("agent/+/proxy/response/+").body[-1] < 0x80
        vehicle.open(own)
        other.open(f"o{own}"[:60])
        publisher.open(f"sdv-campaigns-{vin}", username="sdv-campaigns")
        for wire in (other, publisher, vehicle):
            wire.send(publish(f"agent/{own}/proxy/response/maps-47", answer + str(wire is vehicle).encode(), version))
            wire.expect(PUBACK)

        assert recorder.expect(PUBLISH).payload == answer + b"True"
        recorder.send(b"\xc0\0")
        assert recorder.next().kind == PINGRESP


@pytest.mark.parametrize("version", [4, 5])
def test_publishers_may_write_and_the_consumer_may_also_rewind(tap_server: TapServer, vin: str, version: int) -> None:
    with ExitStack() as stack:
        recorder, publisher, vehicle, other, dispatcher = (
            stack.enter_context(RawConnection(tap_server.port, version=v)) for v in (5, version, version, version, 5)
        )
        recorder.open(f"sdv-recorder-{vin}", username="sdv-recorder")
        for topic_filter in RECORDER_FILTERS:
            recorder.listen(topic_filter)
        publisher.open(f"sdv-pub-{vin}", username="sdv-pub-a")
        vehicle.open(vin[:60])
        other.open(f"o{vin}"[:60])
        dispatcher.open(f"sdv-dispatcher-{vin}", username="sdv-dispatcher")
        own = vin[:60]
        denied = [
            (other, f"$ECQ/r/{own}"),
            (other, f"$ECQ/w/{own}/a"),
            (vehicle, f"$ECQ/w/{own}/a"),
            (vehicle, f"$ECQ/r/{own}/a"),
            (dispatcher, f"$ECQ/w/{own}/a"),
            (dispatcher, f"$ECQ/r/{own}"),
        ]
        taken = [(publisher, f"$ECQ/w/{own}/a/b"), (publisher, f"$ECQ/r/{own}"), (vehicle, f"$ECQ/r/{own}")]
        for wire, topic in denied + taken:
            wire.send(publish(topic, b"x", wire.version))
            wire.expect(PUBACK)

        assert [recorder.expect(PUBLISH).topic for _ in taken] == [topic for _, topic in taken]


@pytest.mark.parametrize("version", [4, 5])
def test_only_the_client_itself_reads_its_compacted_queue(tap_server: TapServer, vin: str, version: int) -> None:
    own = vin[:60]
    filters = [f"$ECQ/{own}/#", "$ECQ/+/#", "$ECQ/#", "#", f"$share/g/$ECQ/{own}/#", f"$exclusive/$ECQ/{own}/#"]
    with ExitStack() as stack:
        vehicle, spy, odd, listener, publisher, dispatcher = (
            stack.enter_context(RawConnection(tap_server.port, version=v))
            for v in (version, version, version, version, version, 5)
        )
        spies = {spy: f"o{vin}"[:60], odd: "+", listener: f"sdv-listener-{vin}", publisher: f"sdv-pub-{vin}"}
        names = {listener: "sdv-listener", publisher: "sdv-pub-a"}
        for wire, client_id in spies.items():
            wire.open(client_id, username=names.get(wire))
            for mid, topic_filter in enumerate(filters, 1):
                wire.send(subscribe(topic_filter, version, mid=mid))
                wire.expect(SUBACK)
        vehicle.open(own)
        vehicle.listen(f"$ECQ/{own}/#")
        dispatcher.open(f"sdv-dispatcher-{vin}", username="sdv-dispatcher")
        for mid in (1, 2, 3):
            dispatcher.send(publish(f"$ECQ/{own}/k{mid}", b"x", mid=mid, properties=user_properties(seq=str(mid))))
            dispatcher.expect(PUBACK)

        assert [vehicle.expect(PUBLISH).topic for _ in range(3)] == [f"$ECQ/{own}/k{mid}" for mid in (1, 2, 3)]
        for wire in spies:
            wire.send(b"\xc0\0")
            assert wire.next().kind == PINGRESP


def test_bytes_that_are_not_mqtt_are_left_to_the_broker(tap_server: TapServer) -> None:
    with RawConnection(tap_server.port) as wire:
        wire.send(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises((EOFError, ConnectionError)):
            wire.next()


def test_an_mqtt_5_vehicle_without_id_is_reported_by_its_assigned_id(tap_server: TapServer) -> None:
    with RawConnection(tap_server.port) as listener, RawConnection(tap_server.port) as vehicle:
        listener.open("sdv-ears-nameless", username="sdv-dispatcher")
        listener.listen("$SDV-EVT/connected/#")
        given = read_properties(vehicle.open("").body[3:])["Assigned-Client-Identifier"]

        while (got := listener.expect(PUBLISH)).topic != f"$SDV-EVT/connected/{given}":
            pass
        assert json.loads(got.payload)["clientid"] == given


def test_the_tap_works_in_front_of_any_mosquitto(tmp_path_factory: pytest.TempPathFactory, vin: str) -> None:
    home = tmp_path_factory.mktemp("plain")
    with stopping(start_mosquitto(home / "broker")) as broker:
        settings = Settings(home=home, mqtt_port=free_port(), broker_port=broker.port, tap_port=free_port())
        with (
            stopping(start_tap(settings)),
            platform(settings.mqtt_port, vin) as dispatcher,
            RawConnection(settings.mqtt_port) as vehicle,
        ):
            vehicle.open(vin)

            assert dispatcher.until("connected")["clientid"] == vin


def test_bytes_of_both_sides_before_the_connack_stay_in_order(tap_server: TapServer, vin: str) -> None:
    with platform(tap_server.port, vin) as dispatcher:
        with RawConnection(tap_server.port) as vehicle:
            vehicle.open(vin, clean=False, expiry_s=300)
            vehicle.listen(topic_of(vin, "+"))
        dispatcher.until("disconnected")
        for seq in range(1, 11):
            dispatcher.send(seq)
        with RawConnection(tap_server.port) as vehicle:
            vehicle.send(connect(vin, clean=False, expiry_s=300), b"\xc0\0")
            kinds = [vehicle.next().kind for _ in range(12)]

            assert kinds[0] == CONNACK
            assert sorted(kinds[1:]) == sorted([PUBLISH] * 10 + [13])


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("reserved", ["w", "r"])
def test_a_client_id_reserved_by_compacted_queue_topics_is_refused(tap_server: TapServer, reserved: str, version: int) -> None:
    with RawConnection(tap_server.port, version=version) as wire:
        wire.send(connect(reserved, version))
        answer = wire.expect(CONNACK)

        assert answer.body == (b"\0\x85\0" if version == 5 else b"\0\x02")
        with pytest.raises(EOFError):
            wire.next()


@pytest.mark.parametrize("clean", [False, True], ids=["takenover", "discarded"])
def test_an_mqtt_5_client_is_notified_of_a_takeover(tap_server: TapServer, vin: str, clean: bool) -> None:
    own = vin[:50]
    with RawConnection(tap_server.port) as first, RawConnection(tap_server.port) as second:
        first.open(own, clean=False, expiry_s=60)
        second.open(own, clean=clean)

        assert first.expect(DISCONNECT).body == b"\x8e"
        with pytest.raises(EOFError):
            first.next()


def test_an_mqtt_5_client_is_notified_of_a_keepalive_timeout(tap_server: TapServer, vin: str) -> None:
    own = vin[:50]
    body = string(b"MQTT") + bytes((5, 2, 0, 1)) + b"\0" + string(own.encode())
    with RawConnection(tap_server.port, within_s=40) as vehicle:
        vehicle.send(packet(0x10, body))
        vehicle.expect(CONNACK)

        assert vehicle.expect(DISCONNECT).body == b"\x8d"


def test_an_mqtt_5_client_without_id_needs_a_clean_start(tap_server: TapServer) -> None:
    with RawConnection(tap_server.port) as nobody, RawConnection(tap_server.port) as somebody:
        assert nobody.open("", clean=False).reason == 0x85
        with pytest.raises(EOFError):
            nobody.next()
        assert somebody.open("", clean=True).reason == 0


def test_a_listener_receives_answers_and_heartbeats_but_no_requests(tap_server: TapServer, vin: str) -> None:
    with (
        platform(tap_server.port, vin) as dispatcher,
        RawConnection(tap_server.port) as listener,
        RawConnection(tap_server.port, version=4) as vehicle,
    ):
        listener.open(f"sdv-listener-{vin}", username="sdv-listener")
        for topic_filter in ("agent/+/proxy/response/#", "ecp/#", "agent/+/proxy/request/+"):
            listener.listen(topic_filter)
        vehicle.open(vin)
        vehicle.listen(f"agent/{vin}/#")
        dispatcher.send(1)
        assert vehicle.expect(PUBLISH).topic == topic_of(vin)
        for mid, topic in enumerate((f"agent/{vin}/proxy/response/r1/done", f"ecp/{vin}/online"), 1):
            vehicle.send(publish(topic, version=4, mid=mid))

        assert {listener.expect(PUBLISH).topic for _ in range(2)} == {f"agent/{vin}/proxy/response/r1/done", f"ecp/{vin}/online"}


@pytest.mark.parametrize("version", [4, 5])
def test_a_subscription_to_all_own_topics_is_reported(tap_server: TapServer, vin: str, version: int) -> None:
    with platform(tap_server.port, vin) as dispatcher, RawConnection(tap_server.port, version=version) as vehicle:
        vehicle.open(vin)
        vehicle.listen(f"agent/{vin}/#")
        fields = dispatcher.until("subscribed")
        dispatcher.send(1)

        assert (fields["topic"], fields["qos"]) == (f"agent/{vin}/#", 1)
        assert vehicle.expect(PUBLISH).topic == topic_of(vin)


@pytest.mark.parametrize(("version", "refused"), [(4, 0x80), (5, 0x87)])
def test_a_filter_that_emqx_denies_is_refused_before_the_broker(
    tap_server: TapServer, vin: str, version: int, refused: int
) -> None:
    own, forbidden = vin[:60], ("$ECQ/+/#", "agent/+/#", "$share/g/$ECQ/+/#", "$share/g/agent/+/#", "$SDV-EVT/#")
    with RawConnection(tap_server.port, version=version) as vehicle, RawConnection(tap_server.port) as dispatcher:
        vehicle.open(own)
        for topic_filter in forbidden:
            assert vehicle.listen(topic_filter).body[-1] == refused
        dispatcher.open(f"sdv-dispatcher-{vin}", username="sdv-dispatcher")
        dispatcher.send(publish(topic_of("nobody-at-all")), publish("$ECQ/nobody-at-all/a", mid=2))

        assert [dispatcher.expect(PUBACK).reason for _ in range(2)] == [16, 16]


@pytest.mark.parametrize(("version", "refused"), [(4, 0x80), (5, 0x87)])
def test_only_granted_filters_of_a_subscribe_are_forwarded(tap_server: TapServer, vin: str, version: int, refused: int) -> None:
    own = vin[:60]
    with RawConnection(tap_server.port, version=version) as vehicle, RawConnection(tap_server.port) as dispatcher:
        vehicle.open(own)
        filters = ("$ECQ/+/#", f"agent/{own}/#", "#", f"$ECQ/{own}/#")
        wanted = b"".join(string(it.encode()) + b"\1" for it in filters)
        asked = packet(0x82, b"\0\7" + (b"\0" if version == 5 else b"") + wanted)
        for byte in asked:  # for any split
            vehicle.send(bytes((byte,)))
        answer = vehicle.expect(SUBACK)
        dispatcher.open(f"sdv-dispatcher-{vin}", username="sdv-dispatcher")
        dispatcher.send(publish(topic_of(own)))

        assert answer.body == b"\0\7" + (b"\0" if version == 5 else b"") + bytes((refused, 1, refused, 1))
        assert dispatcher.expect(PUBACK).reason == 0
        assert vehicle.expect(PUBLISH).topic == topic_of(own)


def test_packets_after_the_connect_wait_for_the_connected_event(tap_server: TapServer, vin: str) -> None:
    own = vin[:60]
    with platform(tap_server.port, own) as dispatcher:
        dispatcher.listener.send(subscribe("ecp/+/online", mid=9))
        dispatcher.listener.expect(SUBACK)
        for _ in range(20):
            with RawConnection(tap_server.port) as vehicle:
                vehicle.send(connect(own), subscribe(topic_of(own, "+")), publish(f"ecp/{own}/online", b"{}", mid=2))
                heard = [dispatcher.event()[0] for _ in range(3)]

                assert heard[0] == "connected"
                assert set(heard[1:]) == {"subscribed", own}
                assert vehicle.next().kind == CONNACK
            dispatcher.until("disconnected")


_INVALID_FILTERS = (b"", b"agent/#/b", b"a+/b", b"a\0b", b"a\xff", b"$share/g", b"$share/+/agent/#")
_INVALID_TOPICS = (
    *((0x82, b"\0\1", it, 0x8F, "topic_filter_invalid") for it in _INVALID_FILTERS),
    (0xA2, b"\0\1", b"agent/#/b", 0x8F, "topic_filter_invalid"),
    *((0x32, b"", it, 0x90, "topic_name_invalid") for it in (b"agent/+/b", b"agent/#", b"a\0b", b"a\xff")),
    (0x32, b"", b"", 0x82, "protocol_error"),
)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(("first", "head", "topic", "code", "reason"), _INVALID_TOPICS)
def test_for_an_invalid_topic_a_client_is_disconnected_as_by_emqx(
    tap_server: TapServer, vin: str, version: int, first: int, head: bytes, topic: bytes, code: int, reason: str
) -> None:
    no_properties = b"\0" if version == 5 else b""
    tails = {0x82: b"\1", 0xA2: b"", 0x32: b"\0\1" + no_properties}
    asked = packet(first, head + (no_properties if head else b"") + string(topic) + tails[first])
    with platform(tap_server.port, vin) as dispatcher, RawConnection(tap_server.port, version=version) as vehicle:
        vehicle.open(vin)
        dispatcher.until("connected")
        vehicle.send(publish(f"ecp/{vin}/online", version=version, mid=7), asked)  # the first is answered before

        assert vehicle.next().kind == PUBACK
        if version == 5:
            assert vehicle.next().body == bytes((code,))
        with pytest.raises(EOFError):
            vehicle.next()
        assert dispatcher.until("disconnected")["reason"] == reason


def test_a_service_is_disconnected_for_an_invalid_topic_as_by_emqx(tap_server: TapServer, vin: str) -> None:
    for asked, code in ((publish("agent/+/b"), b"\x90"), (subscribe("$share/+/agent/#"), b"\x8f")):
        with RawConnection(tap_server.port) as service:
            service.open(f"sdv-dispatcher-{vin}", username="sdv-dispatcher")
            service.send(asked)

            assert service.expect(DISCONNECT).body == code


@pytest.mark.parametrize(("client_id", "code"), [("+", b"\x87"), ("a+b", b"\x8f"), ("#", b"\x8f"), ("a#b", b"\x8f")])
def test_a_client_id_with_a_wildcard_causes_no_event_and_has_no_rights(
    tap_server: TapServer, vin: str, client_id: str, code: bytes
) -> None:
    with RawConnection(tap_server.port) as listener, RawConnection(tap_server.port) as odd:
        listener.open(f"sdv-dispatcher-{vin}", username="sdv-dispatcher")
        listener.listen("$SDV-EVT/connected/#")
        assert odd.open(client_id).reason == 0
        odd.send(subscribe(f"agent/{client_id}/#"))
        assert odd.next().body[-1:] == code
        with RawConnection(tap_server.port) as vehicle:
            vehicle.open(vin)

        assert listener.expect(PUBLISH).topic == f"$SDV-EVT/connected/{vin}"
