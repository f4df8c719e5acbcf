"""Guarantees of topics, tables, archive, outcomes, receipts and settings."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from manifold.contracts import topics
from manifold.contracts.envelope import DUPLICATE_OF, Envelope, Stream, from_arrow, segment_path, to_arrow
from manifold.contracts.errors import SettingsError
from manifold.contracts.events import MAX_REASON, Acked, Connected, DeliveryDropped, Disconnected, Subscribed, parse_event
from manifold.contracts.messages import Receipt, ReceiptStatus
from manifold.contracts.names import is_iso_3779_vin, is_vin
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.seq import seq_of
from manifold.contracts.tables import EVERY_TABLE
from manifold.contracts.topics import BrokerEvent, Sign
from manifold.settings import load_settings, source_of

NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126, blacklist_characters="+#/"), min_size=1, max_size=64)


@given(NAMES, NAMES)
def test_topics_parse_back_into_their_parts(vin: str, request_id: str) -> None:
    assert topics.request_of("agent", topics.request_topic("agent", vin, request_id)) == (vin, request_id)
    assert topics.sign_of(topics.sign_topic(vin, Sign.HEARTBEAT)) == (vin, Sign.HEARTBEAT)
    assert topics.event_of(topics.event_topic(BrokerEvent.ACKED, vin)) == (BrokerEvent.ACKED, vin)
    assert topics.data_id_of(topics.data_topic(request_id)) == request_id
    assert is_vin(vin)


@pytest.mark.parametrize(
    "topic", ["agent/V/proxy/response/r", "agent/V/proxy/request/r/x", "other/V/proxy/request/r", "agent", "agent/"]
)
def test_a_topic_that_is_not_a_request_is_not_parsed(topic: str) -> None:
    assert topics.request_of("agent", topic) is None


def test_a_prefix_may_have_several_levels() -> None:
    assert topics.request_of("fleet/eu", "fleet/eu/V/proxy/request/r") == ("V", "r")


@pytest.mark.parametrize(
    ("vin", "right"),
    [
        pytest.param("1M8GDM9AXKP042788", True, id="check digit X"),
        pytest.param("11111111111111111", True, id="all ones"),
        pytest.param("1M8GDM9A1KP042788", False, id="wrong check digit"),
        pytest.param("1M8GDM9AXKP04278", False, id="sixteen characters"),
        pytest.param("1M8GDM9AXKPO42788", False, id="the letter O"),
    ],
)
def test_iso_3779_vins_have_seventeen_characters_and_a_check_digit(vin: str, right: bool) -> None:
    assert is_iso_3779_vin(vin) is right


def test_a_segment_round_trips() -> None:
    at = datetime(2026, 11, 21, 12, 0, 0, 123456, tzinfo=UTC)
    envelopes = [
        Envelope(1, at, Stream.TRIGGER, "$SDV-FANOUT/trigger", b"{}", headers={"a": "b"}, applied=True),
        Envelope(2, at, Stream.DATA, "$SDV-FANOUT/data/x", b"\x00", refused_because="too large"),
    ]

    assert from_arrow(to_arrow(envelopes)) == envelopes


@pytest.mark.parametrize(("header", "read"), [("17", 17), ("", 0), ("seventeen", 0), ("9" * 5000, 0)])
def test_a_duplicate_of_something_that_is_not_a_seq_is_still_a_duplicate(header: str, read: int) -> None:
    """A foreign archive may contain anything; a recorder that reads it still starts."""
    now = datetime(2026, 3, 10, 11, 59, tzinfo=UTC)
    assert Envelope(1, now, Stream.TRIGGER, "topic", b"", headers={DUPLICATE_OF: header}).duplicate_of == read


def test_a_segment_belongs_to_the_hour_of_its_first_seq() -> None:
    ms = int(datetime(2026, 11, 21, 7, 59, 59, tzinfo=UTC).timestamp() * 1000)
    seq = seq_of(ms, 2, 0)

    assert segment_path(Stream.DATA, seq, 2) == f"data/dt=2026-11-21/hour=07/{seq}-2.parquet"


@pytest.mark.parametrize("table", EVERY_TABLE, ids=lambda table: table.name)
def test_every_table_states_its_grain_in_required_columns(table: object) -> None:
    from manifold.contracts.tables import Table

    assert isinstance(table, Table)
    required = {column.name for column in table.columns if column.required}
    assert set(table.key) <= required
    assert table.day_of is None or table.day_of in {column.name for column in table.columns}
    assert isinstance(table.arrow_schema, pa.Schema)
    assert all(column.meaning for column in table.columns)


@given(
    st.builds(
        OutcomeRecord,
        vin=NAMES,
        seq=st.integers(0, (1 << 63) - 1),
        outcome=st.sampled_from(Outcome),
        ended_ms=st.integers(0, 1 << 42),
        dispatched_ms=st.none() | st.integers(0, 1 << 42),
        attempts=st.none() | st.integers(0, 1000),
        reason=st.none() | st.text(),
    )
)
def test_an_outcome_round_trips(record: OutcomeRecord) -> None:
    assert OutcomeRecord.from_wire(record.to_wire()) == record


@given(st.binary() | st.sampled_from([b"[]", b"{}", b'{"vin":1,"seq":2,"ended_ms":3,"outcome":"delivered"}']))
def test_a_malformed_outcome_raises_value_error(payload: bytes) -> None:
    with pytest.raises(ValueError, match="not an outcome record"):
        OutcomeRecord.from_wire(payload)


@pytest.mark.parametrize(
    "change",
    [
        {"vin": "V/1"},
        {"vin": 1},
        {"seq": 1 << 70},
        {"seq": True},
        {"ended_ms": 1 << 60},
        {"ended_ms": -1},
        {"ended_ms": 1.5},
        {"dispatched_ms": "soon"},
        {"attempts": [1]},
        {"reason": 7},
    ],
)
def test_an_outcome_that_nobody_could_hold_or_show_is_a_value_error(change: dict[str, object]) -> None:
    good = {"vin": "V1", "seq": 1, "ended_ms": 1, "outcome": "failed"}
    assert OutcomeRecord.from_wire(json.dumps(good).encode()).ended_ms == 1
    with pytest.raises(ValueError, match=f"not an outcome record: {next(iter(change))} "):
        OutcomeRecord.from_wire(json.dumps(good | change).encode())


def test_a_receipt_has_all_its_fields_on_the_wire() -> None:
    wire = json.loads(Receipt(5, ReceiptStatus.DUPLICATE, duplicate_of=3).to_wire())

    assert wire == {"seq": 5, "status": "duplicate", "duplicate_of": 3, "reason": None}


def test_broker_events_are_parsed_as_emqx_writes_them() -> None:
    connected = {"event": "client.connected", "timestamp": 5, "clean_start": True, "expiry_interval": 300, "connected_at": 4}
    gone = {
        "timestamp": 9,
        "connected_at": 4,
        "disconnected_at": 8,
        "reason": "normal",
        "disconn_props": {"Session-Expiry-Interval": 60},
    }
    acked = {
        "timestamp": 7,
        "topic": "agent/V/proxy/request/r",
        "publish_received_at": 6,
        "pub_props": {"User-Property": {"seq": "12", "data-id": "d"}},
        "puback_props": {"User-Property": {}},
    }

    def read(event: BrokerEvent, fields: object) -> object:
        return parse_event(event, "V", json.dumps(fields).encode())

    assert read(BrokerEvent.CONNECTED, connected) == Connected("V", 4, True, 300)  # type: ignore[arg-type]
    assert read(BrokerEvent.DISCONNECTED, gone) == Disconnected("V", 8, 4, 60, "normal")  # type: ignore[arg-type]
    assert read(BrokerEvent.ACKED, acked) == Acked("V", 7, "agent/V/proxy/request/r", 12, 6, None)  # type: ignore[arg-type]
    assert read(BrokerEvent.DELIVERED, acked) is None
    for said, takes in ((256, 256), ("undefined", None)):
        fields = connected | {"max_packet_size": said}
        assert read(BrokerEvent.CONNECTED, fields) == Connected("V", 4, True, 300, takes)  # type: ignore[arg-type]


def test_a_subscription_carries_its_granted_qos_and_defaults_to_qos_1() -> None:
    fields: dict[str, object] = {"timestamp": 7, "topic": "$ECQ/V/#"}

    def read(event: BrokerEvent, **more: object) -> object:
        return parse_event(event, "V", json.dumps(fields | more).encode())

    assert read(BrokerEvent.SUBSCRIBED, qos=0) == Subscribed("V", 7, "$ECQ/V/#", True, 0)  # type: ignore[arg-type]
    assert read(BrokerEvent.SUBSCRIBED, qos=2) == Subscribed("V", 7, "$ECQ/V/#", True, 2)  # type: ignore[arg-type]
    assert read(BrokerEvent.SUBSCRIBED) == Subscribed("V", 7, "$ECQ/V/#", True, 1)  # type: ignore[arg-type]
    assert read(BrokerEvent.UNSUBSCRIBED, qos=1) == Subscribed("V", 7, "$ECQ/V/#", False, 1)  # type: ignore[arg-type]


def test_a_dropped_delivery_carries_its_topic() -> None:
    fields = {"timestamp": 7, "topic": "$ECQ/V/a/b", "reason": "queue_full", "pub_props": {"User-Property": {"seq": "12"}}}

    dropped = parse_event(BrokerEvent.DELIVERY_DROPPED, "V", json.dumps(fields).encode())

    assert dropped == DeliveryDropped("V", 7, 12, "queue_full", "$ECQ/V/a/b")  # type: ignore[arg-type]


def test_the_reason_string_of_a_puback_is_truncated() -> None:
    fields = {"timestamp": 1, "topic": "t", "puback_props": {"Reason-String": "x" * 60_000}}
    acked = parse_event(BrokerEvent.ACKED, "V", json.dumps(fields).encode())
    assert isinstance(acked, Acked)
    assert acked.reason == "x" * MAX_REASON


@given(
    st.sampled_from(BrokerEvent),
    st.binary() | st.sampled_from([b"{}", b"[]", b'{"timestamp":"x"}', b'{"timestamp":1,"topic":2}']),
)
def test_an_unreadable_event_raises_only_value_error(event: BrokerEvent, payload: bytes) -> None:
    try:
        parse_event(event, "V", payload)
    except ValueError as exc:
        assert f"not a {event} event of V" in str(exc)


def test_an_invalid_secret_is_named_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANIFOLD_HTTP_TOKEN", "two words")

    with pytest.raises(SettingsError, match=r"MANIFOLD_HTTP_TOKEN=\*\*\*: .*letters, digits") as told:
        load_settings()
    assert "two words" not in str(told.value)


def test_a_variable_of_an_earlier_version_is_a_fallback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MANIFOLD_EXPRESS", "false")
    assert not load_settings().direct_enqueue
    assert source_of("direct_enqueue") == "MANIFOLD_EXPRESS"

    monkeypatch.setenv("MANIFOLD_DIRECT_ENQUEUE", "true")
    assert load_settings().direct_enqueue
    assert source_of("direct_enqueue") == "MANIFOLD_DIRECT_ENQUEUE"


def test_invalid_settings_are_named_together_with_value_and_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "manifold.toml"
    file.write_text("nonsense = 1\nnode = 5\n")
    monkeypatch.setenv("MANIFOLD_FILE", str(file))
    monkeypatch.setenv("MANIFOLD_MQTT_PORT", "99999")
    monkeypatch.setenv("MANIFOLD_TYPO", "1")

    with pytest.raises(SettingsError) as caught:
        load_settings()

    message = str(caught.value)
    assert "MANIFOLD_TYPO is not a setting" in message
    assert "MANIFOLD_MQTT_PORT='99999': input should be less than or equal to 65535 (the front door" in message
    assert f"nonsense in {file} is not a setting" in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RETENTION_DAYS", "1000000"),
        ("RETENTION_DAYS", "inf"),
        ("HISTORY_RETENTION_DAYS", "1e308"),
        ("SIGNALS_RETENTION_DAYS", "inf"),
        ("COMPACT_SETTLED_DAYS", "1000000"),
        ("ALERT_AFTER_SECONDS", "1e300"),
        ("DEDUPE_WINDOW_SECONDS", "inf"),
        ("SIGNALS_CONFIRM_SECONDS", "nan"),
        ("MQTT_SESSION_EXPIRY_SECONDS", "4294967296"),
        ("HOME", "~nobody-has-this-name/manifold"),
        ("CATALOG_PROPERTIES", "[" * 50_000),
        ("SIGNALS_HMAC_ACCEPTED", "[" * 50_000),
        ("CATALOG_URI", "lake.db"),
        ("ARCHIVE_URL", "archive"),
        ("ARCHIVE_URL", "ftp://host/archive"),
        ("ARCHIVE_URL", "s3://"),
        ("MQTT_URL", "mqtt://host:99999"),
        ("MQTT_URL", "mqtt://[::1"),
        ("MQTT_VEHICLE_URL", "mqtt://host:99999"),
        ("MQTT_VEHICLE_URL", "cars.example:8883"),
        ("REDIS_URL", "host:6379"),
        ("REDIS_URL", "redis://:top/secret@host:6379/0"),
        ("SIGNALS_REDIS_URL", "redis://host:99999"),
        ("SIGNALS_AMQP_URL", "http://host"),
    ],
)
def test_a_value_that_would_fail_later_is_refused_when_it_is_read(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"MANIFOLD_{name}", value)
    with pytest.raises(SettingsError, match=f"MANIFOLD_{name}=") as told:
        load_settings()
    assert "secret@" not in str(told.value)
    assert "top/" not in str(told.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RETENTION_DAYS", "36500"),
        ("ARCHIVE_URL", "file:///var/archive"),
        ("ARCHIVE_URL", "s3://bucket/archive"),
        ("MQTT_URL", "mqtts://[::1]:8883"),
        ("REDIS_URL", "unix:///run/redis.sock"),
        ("REDIS_URL", "rediss+cluster://user:a%2Fb@host"),
        ("SIGNALS_AMQP_URL", "amqps://user:password@host/vhost"),
        ("CATALOG_URI", "postgresql+psycopg2://user@host/lake"),
    ],
)
def test_addresses_of_every_kind_are_read(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"MANIFOLD_{name}", value)
    found = getattr(load_settings(), name.lower())
    assert (
        found.get_secret_value() if isinstance(found, SecretStr) else f"{found:g}" if isinstance(found, float) else found
    ) == value


def test_environment_overrides_file_and_file_overrides_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "manifold.toml"
    file.write_text("node = 5\nmax_ids = 7\n")
    monkeypatch.setenv("MANIFOLD_FILE", str(file))
    monkeypatch.setenv("MANIFOLD_NODE", "6")

    settings = load_settings()

    assert (settings.node, settings.max_ids, settings.redis_port) == (6, 7, 6390)


def test_recorders_are_the_configured_ones_or_the_one_on_this_host() -> None:
    assert load_settings(host="h", recorder_port=7).recorders == ["http://h:7"]
    assert load_settings(recorder_urls="http://a:1/,https://b").recorders == ["http://a:1", "https://b"]
