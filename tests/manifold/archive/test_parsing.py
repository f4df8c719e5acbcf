"""The parsers of messages: the same decisions as at the recorder, and no exception for any bytes."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from manifold.archive import parsing
from manifold.archive.content import Unreadable
from manifold.archive.formats import decode
from manifold.archive.parsing import Limits, Parser, fanout
from manifold.contracts.campaigns import Pause, encode
from manifold.contracts.envelope import DUPLICATE_OF, INLINE, Envelope, Stream, to_arrow
from manifold.contracts.messages import LATEST_MS, sha1_hex
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.topics import CAMPAIGN, FANOUT, TRIGGER, response_topic
from tests.pipelines.makers import (
    NOON_MS,
    data,
    duplicate,
    ecq_ack,
    ecq_expired,
    ecq_rewind,
    envelope,
    inline,
    outcome,
    seq_at,
    trigger,
)

LIMITS = Limits(max_ids=25_000, max_data_bytes=8)


def rows(parser: Parser, *envelopes: Envelope, limits: Limits = LIMITS) -> list[dict[str, Any]]:
    return [row for batch in parser(to_arrow(envelopes), limits) for row in batch.to_pylist()]


def test_a_trigger_names_each_of_its_vehicles_once() -> None:
    (row,) = rows(parsing.triggers, trigger(1, ["V1", "V2", "V1"], applied=True))
    assert (row["seq"], row["vins"], row["request_id"], row["data_id"]) == (seq_at(1), ["V1", "V2"], "task_a_1", "d1")
    assert row["applied"] is True
    assert row["reason"] is None


def test_a_large_trigger_is_split_into_rows_of_ten_thousand_vehicles() -> None:
    found = rows(parsing.triggers, trigger(1, [f"V{n}" for n in range(25_000)]))
    assert [len(row["vins"]) for row in found] == [10_000, 10_000, 5_000]
    assert {row["seq"] for row in found} == {seq_at(1)}


def test_vins_by_iso_3779_and_others_are_in_rows_of_their_own() -> None:
    valid, other = ["1M8GDM9AXKP042788", "5YJBT6ZE7T7002409"], ["V1", "1M8GDM9A0KP042788"]
    mixed = [valid[0], other[0], valid[1], other[1]]
    messages = (trigger(1, valid), envelope(2, Stream.TRIGGER, TRIGGER, b"{"), trigger(3, mixed), trigger(4, other))

    found = rows(parsing.triggers, *messages, inline(5, valid, b"x", headers={DUPLICATE_OF: str(seq_at(1))}))

    told = {(row["seq"], row["vins_are_iso_3779"], *row["vins"]) for row in found if row["vins"]}
    assert told == {
        (seq_at(1), True, *valid),
        (seq_at(3), True, *valid),
        (seq_at(3), False, *other),
        (seq_at(4), False, *other),
    }
    assert [row["seq"] for row in found if row["reason"]] == [seq_at(2)]
    assert len(found) == 6


def test_expired_and_acknowledged_compacted_messages_are_told_apart() -> None:
    found = rows(parsing.ecq, ecq_ack(5, "c1", 2), ecq_expired(6, "c1", 3))
    assert [(row["kind"], row["acked_seq"], row["reason"]) for row in found] == [
        ("acknowledged", seq_at(2), None),
        ("expired", seq_at(3), None),
    ]


def test_a_rewind_in_the_last_millisecond_of_all_calendars_is_in_it() -> None:
    late = replace(ecq_rewind(1, "C1"), received_at=datetime.max.replace(tzinfo=UTC))
    (row,) = rows(parsing.ecq, late)
    assert row["acked_ms"] == LATEST_MS


def test_a_duplicate_produces_no_rows_and_is_not_refused() -> None:
    assert rows(parsing.triggers, duplicate(2, 1, ["V1"])) == []


@pytest.mark.parametrize(
    ("message", "word"),
    [
        pytest.param(envelope(1, Stream.TRIGGER, TRIGGER, b"no json"), "not JSON", id="not JSON"),
        pytest.param(envelope(1, Stream.TRIGGER, TRIGGER, b"\xff\xfe"), "not JSON", id="not even text"),
        pytest.param(trigger(1, ["V1", 7]), "ids[1]", id="one bad VIN refuses all"),
        pytest.param(trigger(1, []), "ids is empty", id="empty ids"),
        pytest.param(trigger(1, [f"V{n}" for n in range(25_001)]), "max_ids", id="too many ids"),
        pytest.param(inline(1, ["V1"], b"123456789"), "max_data_bytes", id="inline data too large"),
        pytest.param(envelope(1, Stream.TRIGGER, "$SDV-FANOUT/x", b"{}"), "unknown", id="unknown topic"),
        pytest.param(trigger(1, ["V1"], refused_because="said the door"), "said the door", id="refused by the recorder"),
    ],
)
def test_a_bad_trigger_is_refused_with_its_reason_and_bytes(message: Envelope, word: str) -> None:
    for parser in (parsing.triggers, parsing.refused_triggers):
        (row,) = rows(parser, message)
        assert word in row["reason"]
        assert row["message"] == message.payload
        assert row["vins"] is None


def test_inline_data_has_its_sha1_as_data_id() -> None:
    (row,) = rows(parsing.inline_data, trigger(1, ["V1"]), inline(2, ["V1"], b"hello"))
    assert (row["seq"], row["data_id"], row["payload"]) == (seq_at(2), sha1_hex(b"hello"), b"hello")


def test_a_key_spelled_with_escapes_is_found() -> None:
    payload = json.dumps({"ids": ["V1"], "request_id": "r", "data": "aGk="}).replace('"data"', '"d\\u0061ta"').encode()
    (row,) = rows(parsing.inline_data, envelope(1, Stream.TRIGGER, TRIGGER, payload))
    assert row["payload"] == b"hi"


@pytest.mark.parametrize(
    ("headers", "setting", "bytes_of_maps"),
    [
        pytest.param({INLINE: "text", "sdv-digest": "x"}, "base64", b"maps", id="from the recorder: text"),
        pytest.param({INLINE: "base64", "sdv-digest": "x"}, "text", b"\x99\xaa\x6c", id="from the recorder: base64"),
        pytest.param({"sdv-digest": "x"}, "text", b"\x99\xaa\x6c", id="recorded before text was supported"),
        pytest.param({}, "text", b"maps", id="foreign: as configured"),
    ],
)
def test_inline_data_is_kept_unchanged(headers: dict[str, str], setting: str, bytes_of_maps: bytes) -> None:
    payload = b'{"ids": ["V1"], "request_id": "r", "data": "maps"}'
    message = envelope(1, Stream.TRIGGER, FANOUT, payload, headers=headers)
    (row,) = rows(parsing.inline_data, message, limits=Limits(max_ids=1, max_data_bytes=8, inline_encoding=setting))
    assert row["payload"] == bytes_of_maps


def test_data_is_accepted_or_refused_one_by_one() -> None:
    good, large, nameless = data(1, "d1", b"x"), data(2, "d2", b"123456789"), data(3, "a b", b"x")
    found = rows(parsing.data, good, large, nameless, envelope(4, Stream.DATA, "elsewhere", b"x"))
    assert [(row["data_id"], row["sha1"], row["reason"] is None) for row in found] == [
        ("d1", sha1_hex(b"x"), True),
        (None, None, False),
        (None, None, False),
        (None, None, False),
    ]


def test_an_outcome_states_how_its_entry_ended() -> None:
    (row,) = rows(parsing.outcomes, outcome(9, "V1", 1, Outcome.FAILED))
    assert (row["vin"], row["entry_seq"], row["outcome"], row["ended_ms"]) == ("V1", seq_at(1), "failed", NOON_MS + 9)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"vin": "V/1"}, id="no VIN"),
        pytest.param({"seq": 1 << 70}, id="a seq too large for the column"),
        pytest.param({"seq": True}, id="a seq that is a boolean"),
        pytest.param({"ended_ms": 1 << 60}, id="an instant after the calendar"),
        pytest.param({"dispatched_ms": "soon"}, id="an instant as text"),
        pytest.param({"attempts": -1}, id="negative attempts"),
        pytest.param({"reason": 7}, id="a reason that is a number"),
        pytest.param({"outcome": "eaten"}, id="an unknown outcome"),
    ],
)
def test_an_outcome_that_fits_no_column_is_refused(change: dict[str, object]) -> None:
    good = outcome(9, "V1", 1)
    fields = json.loads(good.payload) | change
    (row,) = rows(parsing.outcomes, envelope(9, Stream.OUTCOME, good.topic, json.dumps(fields).encode()))
    assert row["reason"].startswith("not an outcome record")
    assert row["vin"] is None


def test_a_lone_surrogate_in_a_reason_refuses_the_record() -> None:
    fields = json.loads(outcome(9, "V1", 1).payload)
    payload = json.dumps(fields | {"reason": "\ud800"}).encode()
    (row,) = rows(parsing.outcomes, envelope(9, Stream.OUTCOME, "outcomes/V1", payload))
    assert "not an outcome record" in row["reason"]


HOSTILE = [
    pytest.param('{"ids": [%s], "request_id": "r", "data_id": "d"}', id="ids"),
    pytest.param('{"ids": ["V1"], "request_id": %s, "data_id": "d"}', id="request_id"),
    pytest.param('{"ids": ["V1"], "request_id": "r", "data_id": %s}', id="data_id"),
    pytest.param('{"ids": ["V1"], "request_id": "r", "data": %s}', id="data"),
    pytest.param('{"ids": ["V1"], "request_id": "r", "data_id": "d", "else": %s}', id="another field"),
    pytest.param('{"vin": "V1", "seq": 1, "ended_ms": 1, "outcome": "delivered", "attempts": %s}', id="attempts"),
    pytest.param('{"vin": "V1", "seq": 1, "ended_ms": 1, "outcome": "delivered", "reason": %s}', id="reason"),
    pytest.param('{"vin": "V1", "seq": 1, "ended_ms": 1, "outcome": %s}', id="outcome"),
    pytest.param('{"vin": %s, "seq": 1, "ended_ms": 1, "outcome": "delivered"}', id="vin"),
]


@pytest.mark.parametrize("shape", HOSTILE)
@pytest.mark.parametrize(
    "value", [*("[" * n + "]" * n for n in range(970, 1000)), "9" * 4301, '"' + "x" * 100_000 + '"', "1e999"]
)
def test_no_nesting_depth_or_size_stops_the_others(shape: str, value: str) -> None:
    bad = (shape % value).encode()
    for parser, good in ((parsing.triggers, trigger(2, ["V2"])), (parsing.outcomes, outcome(2, "V2", 1))):
        found = rows(parser, envelope(1, good.stream, TRIGGER, bad), good)
        refused, accepted = found[0], found[-1]
        assert accepted["reason"] is None
        assert refused["reason"] is None or len(refused["reason"]) < 1000
        assert refused["message"] in (None, bad)
    rows(parsing.inline_data, envelope(1, Stream.TRIGGER, TRIGGER, bad))


@pytest.mark.parametrize("name", ["triggers", "inline_data", "data", "outcomes"])
def test_an_exception_while_parsing_refuses_that_message_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    for function in ("parse_trigger", "parse_data"):
        monkeypatch.setattr(fanout, function, fail)
    monkeypatch.setattr(OutcomeRecord, "from_wire", fail)
    message = data(1, "d", b"x") if name == "data" else inline(1, ["V1"], b"x")
    for row in rows(getattr(parsing, name), message):
        assert "validation failed (MemoryError)" in row["reason"]
        assert row["message"] == message.payload


def test_an_exception_while_reading_makes_a_file_no_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr("manifold.archive.formats.from_lines", fail)
    with pytest.raises(Unreadable, match="RuntimeError"):
        decode("trigger/depot.jsonl", b"{}")


def test_an_order_to_a_campaign_is_one_row_and_a_bad_one_is_refused() -> None:
    good = envelope(1, Stream.CAMPAIGN, CAMPAIGN, encode(Pause("maps-47", "ann", why="wait")))
    bad = envelope(2, Stream.CAMPAIGN, CAMPAIGN, b'{"do": "pause"}')
    elsewhere = envelope(3, Stream.CAMPAIGN, TRIGGER, encode(Pause("maps-47", "ann")))

    first, second, third = rows(parsing.PARSERS[Stream.CAMPAIGN], good, bad, elsewhere)

    assert [first[name] for name in ("campaign", "do", "by", "why", "reason")] == ["maps-47", "pause", "ann", "wait", None]
    assert second["reason"].startswith("not a record of a campaign")
    assert second["message"] == b'{"do": "pause"}'
    assert third["reason"].startswith('unknown topic "$SDV-FANOUT/trigger"')


def test_an_answer_of_a_vehicle_is_one_row_and_a_bad_one_is_refused() -> None:
    topic = response_topic("fleet/eu", "V1", "maps-47")
    said = [
        b'{"seq": 7, "status": "busy", "reason": "in motion"}',
        b'{"seq": "8", "status": "done"}',
        b'{"seq": 7, "status": "ok"}',
    ]
    answers = [envelope(ms, Stream.ANSWER, topic, payload) for ms, payload in enumerate(said, 1)]
    limited = envelope(4, Stream.ANSWER, topic, said[0], refused_because="faster than the limit")

    *accepted, bad, late = rows(parsing.PARSERS[Stream.ANSWER], *answers, limited)

    fields = ("vin", "campaign", "release", "status", "answer_reason", "reason")
    assert [tuple(row[name] for name in fields) for row in accepted] == [
        ("V1", "maps-47", 7, "busy", "in motion", None),
        ("V1", "maps-47", 8, "done", None, None),
    ]
    assert (bad["reason"], bad["message"]) == ('status "ok" must be one of busy, failed, refused, done', said[2])
    assert (late["reason"], late["vin"]) == ("faster than the limit", None)
