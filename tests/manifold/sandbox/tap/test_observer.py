"""Events of a connection, derived from its bytes."""

from collections.abc import Callable

import orjson
import pytest

from manifold.contracts.events import Acked, Connected, Disconnected, Event, Subscribed, parse_event
from manifold.contracts.rights import Rights
from manifold.contracts.topics import BrokerEvent
from manifold.sandbox.tap.events import Fields
from manifold.sandbox.tap.observer import SessionObserver
from manifold.sandbox.tap.packets import packet, string
from manifold.sandbox.tap.publication_store import PublicationStore
from manifold.sandbox.tap.sessions import Sessions
from manifold.sandbox.tap.topic_syntax import is_topic_filter
from tests.manifold.sandbox.tap.raw_connection import connect, puback, publish, subscribe, user_properties

FILTER, TOPIC = "agent/V/proxy/request/+", "agent/V/proxy/request/r1"


class Scene:
    """Sessions that collect their events, with broker replies chosen by the test."""

    def __init__(self, store: PublicationStore | None = None) -> None:
        self.told: list[tuple[BrokerEvent, str, Fields]] = []
        self.waiting: list[Callable[[], None]] = []
        self.now_ms = 1_800_000_000_000
        self.sessions = Sessions(Rights(), PublicationStore() if store is None else store, self._emit, lambda: self.now_ms)
        self.dispatcher = self.connected("sdv-dispatcher-1")

    def _emit(self, event: BrokerEvent, client_id: str, fields: Fields, done: Callable[[], None] | None) -> None:
        self.told.append((event, client_id, fields))
        if done is not None:
            self.waiting.append(done)

    def asking(self, client_id: str, version: int = 5, *, clean: bool = True, expiry_s: int = 0) -> SessionObserver:
        observer = SessionObserver(self.sessions, lambda: None)
        observer.up.feed(connect(client_id, version, clean=clean, expiry_s=expiry_s))
        return observer

    def accept(self, observer: SessionObserver, *, present: bool = False) -> SessionObserver:
        version = observer.connect_packet.version if observer.connect_packet else 4
        observer.down.feed(packet(0x20, bytes((present, 0)) + (b"\0" if version == 5 else b"")))
        while self.waiting:
            self.waiting.pop()()
        return observer

    def connected(
        self, client_id: str, version: int = 5, *, present: bool = False, clean: bool = True, expiry_s: int = 0
    ) -> SessionObserver:
        return self.accept(self.asking(client_id, version, clean=clean, expiry_s=expiry_s), present=present)

    def send(
        self, vehicle: SessionObserver, seq: int, *, mid: int, payload: bytes = b"hello", dup: bool = False, again: bool = False
    ) -> None:
        """Publish as the dispatcher; the broker confirms and delivers. `again` only delivers, from the stored session."""
        version = vehicle.connect_packet.version if vehicle.connect_packet else 4
        properties = user_properties(seq=str(seq), data_id="d1")
        if not again:
            self.dispatcher.up.feed(publish(TOPIC, payload, mid=seq, properties=properties))
            self.dispatcher.down.feed(puback(seq, 0))
        vehicle.down.feed(publish(TOPIC, payload, version, mid=mid, dup=dup, properties=properties))

    @property
    def events(self) -> list[Event]:
        """The events as a dispatcher reads them."""
        found = (parse_event(event, client_id, orjson.dumps(fields)) for event, client_id, fields in self.told)
        return [event for event in found if event is not None]

    @property
    def acked(self) -> list[int | None]:
        return [event.seq for event in self.events if isinstance(event, Acked)]


@pytest.mark.parametrize("version", [4, 5])
def test_an_ack_event_carries_its_seq_on_both_protocols(version: int) -> None:
    scene = Scene()
    vehicle = scene.connected("V", version)
    scene.send(vehicle, 41, mid=1)

    vehicle.up.feed(puback(1))

    (event,) = (event for event in scene.events if isinstance(event, Acked))
    assert (event.owner, event.topic, event.seq, event.published_ms) == ("V", TOPIC, 41, scene.now_ms)
    assert len(scene.sessions.store) == 0


def test_a_negative_puback_is_an_ack_event_with_the_reason() -> None:
    scene = Scene()
    vehicle = scene.connected("V")
    scene.send(vehicle, 41, mid=1)

    vehicle.up.feed(packet(0x40, b"\0\1\x97" + b"\x0a\x1f\0\7no room"))

    (event,) = (event for event in scene.events if isinstance(event, Acked))
    assert (event.seq, event.reason) == (41, "no room")


def test_a_puback_for_an_unknown_packet_id_is_no_event() -> None:
    scene = Scene()
    vehicle = scene.connected("V")
    scene.send(vehicle, 41, mid=1)

    vehicle.up.feed(puback(2) + puback(1) + puback(1))

    assert scene.acked == [41]


def test_the_connack_is_held_until_the_event_is_published() -> None:
    scene = Scene()
    vehicle = scene.asking("V", 4)

    vehicle.down.feed(b"\x20\x02\0\0")
    held = vehicle.holds_connack
    scene.waiting.pop()()

    assert (held, vehicle.holds_connack) == (True, False)


def test_bytes_after_the_connack_are_left_for_later() -> None:
    scene = Scene()
    vehicle = scene.asking("V", 4)

    assert vehicle.down.feed(b"\x20\x02\1\0" + publish(TOPIC, b"x", 4)) == 4


def test_services_cause_no_events() -> None:
    scene = Scene()
    service = scene.connected("sdv-recorder-0")
    service.up.feed(subscribe("$SDV-FANOUT/#"))
    service.down.feed(packet(0x90, b"\0\1\0\1"))
    service.client_closed()

    assert scene.told == []


def test_a_refused_connection_causes_no_event() -> None:
    scene = Scene()
    vehicle = scene.asking("V")
    vehicle.down.feed(b"\x20\x03\0\x87\0")
    vehicle.client_closed()

    assert scene.told == []
    assert scene.sessions.awaiting_connack == {}


@pytest.mark.parametrize(("clean", "reason"), [(False, "takenover"), (True, "discarded")])
@pytest.mark.parametrize("old_closed_first", [False, True])
def test_the_old_connection_ends_before_the_new_one_begins(clean: bool, reason: str, old_closed_first: bool) -> None:
    scene = Scene()
    old = scene.connected("V", expiry_s=300, clean=False)
    new = scene.asking("V", expiry_s=300, clean=clean)
    if old_closed_first:
        old.broker_closed(0)
    scene.accept(new, present=not clean)
    if not old_closed_first:
        old.broker_closed(0)
    old.client_closed()

    kinds = [(type(event), getattr(event, "reason", None)) for event in scene.events[1:]]
    assert kinds == [(Disconnected, reason), (Connected, None)]


def has_two_in_flight(scene: Scene, version: int) -> SessionObserver:
    """A vehicle that resumes its sessions and has 1 and 2 in flight."""
    vehicle = scene.connected("V", version, clean=False, expiry_s=300)
    scene.send(vehicle, 1, mid=1)
    scene.send(vehicle, 2, mid=2)
    return vehicle


def gets_both_again(scene: Scene, version: int) -> SessionObserver:
    """The same vehicle, back in its session."""
    vehicle = scene.connected("V", version, present=True, clean=False, expiry_s=300)
    scene.send(vehicle, 1, mid=1, dup=True, again=True)
    scene.send(vehicle, 2, mid=2, dup=True, again=True)
    return vehicle


@pytest.mark.parametrize("version", [4, 5])
def test_packet_ids_in_flight_survive_the_connection(version: int) -> None:
    scene = Scene()
    has_two_in_flight(scene, version).client_closed()

    gets_both_again(scene, version).up.feed(puback(2) + puback(1))

    assert scene.acked == [2, 1]


def test_after_a_clean_start_a_late_puback_acknowledges_nothing() -> None:
    scene = Scene()
    vehicle = scene.connected("V", 4, clean=False)
    scene.send(vehicle, 1, mid=1)
    vehicle.client_closed()

    again = scene.connected("V", 4, clean=True)
    again.up.feed(puback(1))
    scene.send(again, 2, mid=1)
    again.up.feed(puback(1))

    assert scene.acked == [2]


@pytest.mark.parametrize("version", [4, 5])
def test_a_killed_tap_recognises_redelivered_messages(version: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("tap") / "publications.jsonl"
    before = Scene(PublicationStore(path))
    has_two_in_flight(before, version)
    before.sessions.store.flush()

    after = Scene(PublicationStore(path))
    gets_both_again(after, version).up.feed(puback(1) + puback(2))

    assert after.acked == [1, 2]


def test_a_foreign_message_on_the_vehicle_topic_acknowledges_nothing_of_ours() -> None:
    scene = Scene()
    vehicle = scene.connected("V", 4)
    scene.dispatcher.up.feed(publish(TOPIC, b"ours", mid=1, properties=user_properties(seq="41")))
    vehicle.down.feed(publish(TOPIC, b"foreign", 4, mid=1))
    vehicle.up.feed(puback(1))

    assert scene.acked == [None]


def test_a_publish_without_subscribers_is_reported_and_forgotten() -> None:
    scene = Scene()
    scene.dispatcher.up.feed(publish(TOPIC, b"x", mid=5, properties=user_properties(seq="41")))
    scene.dispatcher.down.feed(puback(5, 16))

    ((event, client_id, fields),) = scene.told
    assert (event, client_id, fields["reason"], fields["pub_props"]["User-Property"]) == (
        BrokerEvent.DROPPED,
        "sdv-dispatcher-1",
        "no_subscribers",
        {"seq": "41"},
    )
    assert len(scene.sessions.store) == 0


def test_a_publisher_may_use_topic_aliases() -> None:
    scene = Scene()
    vehicle = scene.connected("V", 4)
    alias = b"\x23\0\1"
    scene.dispatcher.up.feed(publish(TOPIC, b"a", mid=1, properties=alias + user_properties(seq="1")))
    scene.dispatcher.up.feed(publish("elsewhere", b"b", mid=2, properties=b"\x23\0\2"))
    scene.dispatcher.up.feed(publish("", b"c", mid=3, properties=alias + user_properties(seq="3")))
    scene.dispatcher.up.feed(publish("", b"d", mid=4, properties=b"\x23\0\2"))
    for mid, payload in enumerate((b"a", b"c"), 1):
        vehicle.down.feed(publish(TOPIC, payload, 4, mid=mid))
        vehicle.up.feed(puback(mid))

    assert scene.acked == [1, 3]
    assert len(scene.sessions.store) == 0


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("topic", ["$ECQ/w/V/a/b", "$ECQ/w", "$ECQ/r/V", "$ECQ/r"])
def test_incoming_compacted_queue_messages_are_not_tracked(topic: str, version: int) -> None:
    scene = Scene()
    for client_id, no_subscribers in (("sdv-pub-1", 16), ("sdv-pub-2", 0), ("V", 0)):
        publisher = scene.connected(client_id, version)
        publisher.up.feed(publish(topic, b"a", version, mid=1))
        publisher.down.feed(puback(1, no_subscribers if version == 5 else None))

    assert len(scene.sessions.store) == 0
    assert not any(event in (BrokerEvent.DROPPED, BrokerEvent.ACKED) for event, _, _ in scene.told)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("key", ["a", "a/b", "/", "w/a", "r"])
def test_an_ack_of_a_compacted_queue_carries_its_topic_and_seq(key: str, version: int) -> None:
    scene = Scene()
    vehicle = scene.connected("V", version)
    scene.dispatcher.up.feed(publish(f"$ECQ/V/{key}", b"a", mid=7, properties=user_properties(seq="7")))
    vehicle.down.feed(publish(f"$ECQ/V/{key}", b"a", version, mid=1, properties=user_properties(seq="7")))
    vehicle.up.feed(puback(1))

    (event,) = (event for event in scene.events if isinstance(event, Acked))
    assert (event.owner, event.topic, event.seq) == ("V", f"$ECQ/V/{key}", 7)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_subscription_event_carries_the_granted_qos(qos: int, version: int) -> None:
    scene = Scene()
    vehicle = scene.connected("V", version)
    vehicle.up.feed(subscribe("$ECQ/V/#", version, qos=2))
    vehicle.down.feed(packet(0x90, b"\0\1" + (b"\0" if version == 5 else b"") + bytes((qos,))))

    assert [(event.topic_filter, event.qos) for event in scene.events if isinstance(event, Subscribed)] == [("$ECQ/V/#", qos)]


@pytest.mark.parametrize(
    ("topic_filter", "told"),
    [
        (FILTER, True),
        (TOPIC, True),
        ("agent/V/proxy/request/#", True),
        ("agent/V/proxy/request/a/b", True),
        ("agent/V/proxy/response/+", True),
        ("agent/V/+/request/+", True),
        ("agent/V/#", True),
        ("agent/V", True),
        ("$ECQ/V/#", True),
        ("$ECQ/V/a/+", True),
        ("$ECQ/W/#", False),
        ("$ECQ/+/#", False),
        ("$ECQ/#", False),
        ("$ECQ/w/#", False),
        ("$ECQ/r/V", False),
        ("$share/g/$ECQ/V/#", False),
        ("$exclusive/$ECQ/V/#", False),
        ("agent/W/#", False),
        ("agent/W/proxy/request/+", False),
        ("agent/+/proxy/request/+", False),
        ("$share/g/agent/V/proxy/request/+", False),
        ("#", False),
    ],
)
def test_only_subscriptions_that_emqx_would_grant_and_report_cause_events(topic_filter: str, told: bool) -> None:
    scene = Scene()
    vehicle = scene.connected("V")
    vehicle.up.feed(subscribe(topic_filter))
    vehicle.down.feed(packet(0x90, b"\0\1\0\1"))
    vehicle.up.feed(packet(0xA2, b"\0\2\0" + string(topic_filter.encode())))
    vehicle.down.feed(packet(0xB0, b"\0\2\0\0"))

    heard = [(event.topic_filter, event.on) for event in scene.events if isinstance(event, Subscribed)]
    assert heard == [(topic_filter, True), (topic_filter, False)][: 2 * told]


@pytest.mark.parametrize(
    ("packets", "reason"),
    [
        pytest.param(b"\xe0\0", "normal", id="plain"),
        pytest.param(b"\xe0\x01\x04", "disconnect_with_will_message", id="with will"),
        pytest.param(b"\xe0\x01\x80", "unspecified_error", id="an error"),
        pytest.param(b"\xe0\x07\0\x05\x11\0\0\1\x2c", "protocol_error", id="session expiry from 0 to 300"),
        pytest.param(b"", "tcp_closed", id="socket closed"),
    ],
)
def test_a_disconnect_event_carries_its_reason(packets: bytes, reason: str) -> None:
    scene = Scene()
    vehicle = scene.connected("V")
    vehicle.up.feed(packets)
    vehicle.client_closed()

    assert [event.reason for event in scene.events if isinstance(event, Disconnected)] == [reason]


@pytest.mark.parametrize(("silent_s", "reason"), [(100, "keepalive_timeout"), (1, "internal_error")])
def test_a_silent_close_by_the_broker_is_explained_by_the_keepalive(silent_s: float, reason: str) -> None:
    scene = Scene()
    scene.connected("V", 4).broker_closed(silent_s)

    assert [event.reason for event in scene.events if isinstance(event, Disconnected)] == [reason]


def test_unparsable_bytes_stop_observation_and_cause_no_event() -> None:
    scene = Scene()
    vehicle = scene.connected("V")
    vehicle.up.feed(b"\x00\x00\x00")
    vehicle.up.feed(puback(1))
    vehicle.broker_closed(0)

    assert [event.reason for event in scene.events if isinstance(event, Disconnected)] == ["protocol_error"]


def test_an_expired_session_is_forgotten() -> None:
    scene = Scene()
    vehicle = scene.connected("V", clean=False, expiry_s=10)
    scene.send(vehicle, 1, mid=1)
    vehicle.client_closed()
    scene.now_ms += 100_000

    scene.sessions.sweep()

    assert (scene.sessions.by_id, len(scene.sessions.store)) == ({}, 0)


def test_a_session_lives_no_longer_than_at_the_broker() -> None:
    scene = Scene()
    scene.connected("V", expiry_s=0xFFFFFFFF)

    (event,) = scene.events
    assert isinstance(event, Connected)
    assert event.expiry_s == 7200


@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        ("a/b", True),
        ("+", True),
        ("#", True),
        ("a/+/b/#", True),
        ("a+b/c", False),
        ("a/#/b", False),
        ("a/b#", False),
        ("", False),
        ("a\0b", False),
        ("a/\udcff", False),
        ("$share/g/a/#", True),
        ("$share/g//", True),
        ("$share", True),
        ("$share/g", False),
        ("$share/g/", False),
        ("$share//a", False),
        ("$share/+/a", False),
        ("$share/g/$share/g/a", False),
    ],
)
def test_filters_are_valid_as_in_emqx(asked: str, fits: bool) -> None:
    assert is_topic_filter(asked.encode("utf-8", "surrogateescape")) is fits
