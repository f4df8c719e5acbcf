"""Columnar parsing of signal messages: each row equals that of the message parsed alone."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from manifold.archive import parsing
from manifold.archive.parsing import Limits, Parser
from manifold.contracts.envelope import Envelope, Stream, to_arrow
from manifold.contracts.signals.bounds import DEFAULT_BOUNDS, read_bounds
from manifold.lake.day_keys import DayKeys
from manifold.lake.key_ring import KeyRing, new_key_line, read_keys
from tests.pipelines.makers import envelope
from tests.pipelines.signal_makers import Sealing, readings

LIMITS = Limits(max_ids=1, max_data_bytes=1)
HOT = readings(("temperature", 99, "celsius"), ("humidity", 7, "%"))
KINDS = ("good", "nothing", "refused", "refused twice", "no record", "not sealed", "sealed for another", "key gone")
STATUSES = ("good", "refused", "no record", "unknown")


def rows(parser: Parser, *envelopes: Envelope) -> list[dict[str, Any]]:
    return [row for batch in parser(to_arrow(envelopes), LIMITS) for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> DayKeys:
    ring = read_keys(new_key_line(), "test")
    return DayKeys(f"file://{tmp_path_factory.mktemp('archive')}", KeyRing(ring))


def raw(sealing: Sealing, ms: int, kind: str) -> Envelope:
    match kind:
        case "good":
            return sealing.raw(ms, "d-1", HOT, metadata={"battery": 5})
        case "nothing":
            return sealing.raw(ms, "d-2", b"-")
        case "refused":
            return sealing.refused(ms, b"{", "d-3")
        case "refused twice":
            return sealing.refused(ms, b"{", digest="abc")
        case "no record":
            return envelope(ms, Stream.XRAY_RAW, "xray.raw.v1/d", b"\xff")
        case "not sealed":
            return sealing.raw(ms, "d-4", HOT, sealed=b"in the clear")
        case "sealed for another":
            return sealing.raw(ms, "d-5", HOT, sealed=sealing.keys.seal(HOT, seq=7))
        case _:
            sealed = sealing.keys.seal(HOT, seq=9)
            day = sealed[5:15]
            return sealing.raw(ms, "d-6", HOT, sealed=sealed.replace(day, b"2001-01-01", 1))


def status(sealing: Sealing, ms: int, kind: str) -> Envelope:
    match kind:
        case "good":
            return sealing.status(ms, "d-1", "online", {"batteryLevel": 7})
        case "refused":
            return sealing.refused(ms, b"{", digest="abc", stream=Stream.XRAY_STATUS)
        case "no record":
            return envelope(ms, Stream.XRAY_STATUS, "device.status.v1/d", b"\x93")
        case _:
            made = sealing.status(ms, "d-1", "online")
            return envelope(ms, Stream.XRAY_STATUS, made.topic, made.payload.replace(b"\xa6online", b"\xa6asleep"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=6))
def test_raw_signals_in_a_batch_parse_as_they_do_alone(kinds: list[str], keys: DayKeys) -> None:
    messages = [raw(Sealing(keys), ms, kind) for ms, kind in enumerate(kinds)]
    processing = parsing.Processing(keys, read_bounds(DEFAULT_BOUNDS))
    for parser in (parsing.signals, processing):
        together = rows(parser, *messages)
        assert together == [row for message in messages for row in rows(parser, message)]
    raw_rows, processed = rows(parsing.signals, *messages), rows(processing, *messages)
    assert [{name: row[name] for name in parsing.SIGNALS.names} for row in processed] == raw_rows
    assert [row["rules"] is None for row in processed] == [row["reason"] is not None for row in raw_rows]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kinds=st.lists(st.sampled_from(STATUSES), min_size=1, max_size=6))
def test_statuses_in_a_batch_parse_as_they_do_alone(kinds: list[str], keys: DayKeys) -> None:
    messages = [status(Sealing(keys), ms, kind) for ms, kind in enumerate(kinds)]
    assert rows(parsing.statuses, *messages) == [row for message in messages for row in rows(parsing.statuses, message)]


@pytest.mark.parametrize(
    ("kind", "reason", "problem"),
    [
        ("good", None, None),
        ("nothing", None, None),
        ("refused", "too old", None),
        ("no record", "not a valid record of a signal", None),
        ("not sealed", "its payload must be sealed", None),
        ("sealed for another", None, "are damaged, or of another message"),
        ("key gone", None, "is gone"),
    ],
)
def test_a_signal_message_is_parsed_refused_or_reported_as_a_problem(
    kind: str, reason: str | None, problem: str | None, keys: DayKeys
) -> None:
    message = raw(Sealing(keys), 3, kind)
    (row,) = rows(parsing.signals, message)
    (made,) = rows(parsing.Processing(keys, read_bounds(DEFAULT_BOUNDS)), message)
    if reason is not None:
        assert (reason in row["reason"], row["message"], row["payload"]) == (True, message.payload, None)
        assert [made[name] for name in ("readings", "anomalies", "anomaly_types", "rules", "problem")] == [None] * 5
    else:
        assert (row["reason"], row["message"], row["key_id"] is not None) == (None, None, True)
        assert (made["device_id"], made["captured_us"]) == (row["device_id"], row["captured_us"])
        assert made["problem"] is None if problem is None else problem in made["problem"]
        hot = (["temperature", "humidity"], ["temperature_high"], "temperature_high") if kind == "good" else ([], [], "")
        found = ([r["type"] for r in made["readings"]], [a["type"] for a in made["anomalies"]], made["anomaly_types"])
        assert found == hot


def test_without_a_key_ring_rows_say_so(keys: DayKeys) -> None:
    (made,) = rows(parsing.Processing(None, {}), raw(Sealing(keys), 1, "good"))
    assert (made["readings"], made["problem"], made["rules"]) == ([], "the key ring cannot be read", 1)
