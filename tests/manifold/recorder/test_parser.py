"""Parsing at the recorder, without any server."""

import base64
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from manifold.archive.records import frames, scan
from manifold.contracts import campaigns, topics
from manifold.contracts.ecq import Append, EcqAck, Rewind
from manifold.contracts.envelope import DUPLICATE_OF, Stream
from manifold.contracts.messages import ReceiptStatus, sha1_hex
from manifold.contracts.names import Owner
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.seq import seq_of
from manifold.messaging.mqtt import Message
from manifold.recorder._dedupe import DedupeWindow
from manifold.recorder._parser import DIGEST, PACKET_ID, Parser
from manifold.recorder._rate_limit import MAX_KEPT_BYTES
from manifold.settings import Settings
from tests.support.wire import trigger


@pytest.fixture
def parser(tmp_path: Path) -> Parser:
    settings = Settings(home=tmp_path, max_data_bytes=100, max_trigger_bytes=1000, max_ids=3)
    return Parser(settings, DedupeWindow(900_000))


def test_an_accepted_trigger_carries_its_digest_and_no_forged_header(parser: Parser) -> None:
    properties = [(DUPLICATE_OF, "1"), ("task", "7")]
    taken = parser.build(Message(topics.TRIGGER, trigger(["V1"], "r1"), user_properties=properties))
    assert taken.offerable
    assert taken.receipt.status is ReceiptStatus.RECORDED
    assert set(taken.envelope.headers) == {"task", DIGEST}
    assert taken.envelope.duplicate_of is None


def test_a_reordered_trigger_is_a_duplicate_of_the_first(parser: Parser) -> None:
    first = parser.build(Message(topics.TRIGGER, trigger(["V1", "V2"], "r1")))
    again = [parser.build(Message(topics.TRIGGER, trigger(["V2", "V1", "V1"], "r1"))) for _ in range(2)]
    assert [(each.duplicate_of, each.envelope.duplicate_of, each.offerable) for each in again] == [
        (first.seq, first.seq, False)
    ] * 2
    assert (
        again[0].receipt.to_wire()
        == json.dumps({"seq": again[0].seq, "status": "duplicate", "duplicate_of": first.seq, "reason": None}).encode()
    )


REFUSED = [
    pytest.param(topics.TRIGGER, b"{", "not JSON", Stream.TRIGGER, id="not JSON"),
    pytest.param(topics.TRIGGER, b"\xff\xfe", "not JSON", Stream.TRIGGER, id="not text"),
    pytest.param(topics.TRIGGER, trigger([], "r"), "ids is empty", Stream.TRIGGER, id="no VIN"),
    pytest.param(topics.TRIGGER, trigger(["V1", "a b"], "r"), "ids[1]", Stream.TRIGGER, id="one bad VIN"),
    pytest.param(topics.TRIGGER, trigger(["1", "2", "3", "4"], "r"), "max_ids=3", Stream.TRIGGER, id="too many VINs"),
    pytest.param(topics.TRIGGER, trigger(["V" * 60] * 20, "r"), "max_trigger_bytes=1000", Stream.TRIGGER, id="trigger too large"),
    pytest.param(topics.data_topic("d"), b"x" * 101, "max_data_bytes=100", Stream.DATA, id="data too large"),
    pytest.param(topics.DATA_PREFIX, b"x", 'data_id ""', Stream.DATA, id="no data id"),
    pytest.param(f"{topics.FANOUT}/other", b"x", "unknown topic", Stream.TRIGGER, id="unknown topic"),
    pytest.param("$ECQ/w/V1", b"x", "names no key", Stream.ECQ, id="no key"),
    pytest.param("$ECQ/w/r/a", b"x", "level of the topics", Stream.ECQ, id="a reserved client id"),
    pytest.param("$ECQ/w/V1/a", b"x" * 101, "max_data_bytes=100", Stream.ECQ, id="compacted message too large"),
    pytest.param("$ECQ/r/V1", b"yesterday", "is not a position to rewind to", Stream.ECQ, id="invalid rewind position"),
    pytest.param("$ECQ/r", b"earliest", "unknown topic", Stream.ECQ, id="rewind without a client id"),
]


@pytest.mark.parametrize(("topic", "payload", "reason", "stream"), REFUSED)
def test_bad_input_is_refused_with_its_reason_and_bytes(
    parser: Parser, topic: str, payload: bytes, reason: str, stream: Stream
) -> None:
    taken = parser.build(Message(topic, payload))
    assert not taken.offerable
    assert reason in str(taken.envelope.refused_because)
    assert (taken.envelope.payload, taken.envelope.stream, taken.receipt.status) == (payload, stream, ReceiptStatus.REFUSED)


TOPICS = (
    *(topics.TRIGGER, topics.data_topic("d"), topics.data_topic("a\0b"), f"{topics.FANOUT}/\ufffd", "x" * 65_535),
    *("$ECQ/w/V1/a", "$ECQ/w/\ufffd/a", "$ECQ/w/V1/" + "/" * 500, "$ECQ/w/V1/a\0", "$ECQ/r/V1", "$ECQ/r/" + "x" * 65_000),
)


@example("$ECQ/r/V1", b"[" * 1025, [], None)
@given(
    topic=st.sampled_from(TOPICS),
    payload=st.binary(max_size=200) | st.builds(lambda depth: b'{"ids": [' + b"[" * depth, st.integers(0, 1100)),
    properties=st.lists(st.tuples(st.text(max_size=9), st.text(max_size=9)), max_size=5),
    unreadable=st.sampled_from([None, "a text in it is not UTF-8"]),
)
def test_any_input_becomes_a_writable_envelope(
    topic: str, payload: bytes, properties: list[tuple[str, str]], unreadable: str | None
) -> None:
    parser = Parser(Settings(max_data_bytes=100, max_trigger_bytes=1000), DedupeWindow(1))
    taken = parser.build(Message(topic, payload, user_properties=properties, unreadable=unreadable))
    (written,) = scan(frames([taken.envelope])).envelopes()
    kept = payload[:MAX_KEPT_BYTES] if topic.startswith(topics.ECQ_REWIND_PREFIX) else payload
    assert (written.payload, written.topic, written.refused_because) == (kept, topic, taken.refused_because)
    assert unreadable is None or unreadable in str(taken.refused_because)
    assert len(str(taken.refused_because)) < 1000
    json.loads(taken.receipt.to_wire())


def test_an_exception_while_parsing_refuses_the_message_with_its_bytes(parser: Parser, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("manifold.recorder._parser.parse_trigger", fail)
    taken = parser.build(Message(topics.TRIGGER, b"bytes"))
    assert not taken.offerable
    assert "validation failed (MemoryError)" in str(taken.envelope.refused_because)
    assert (taken.envelope.payload, taken.receipt.status) == (b"bytes", ReceiptStatus.REFUSED)
    assert "validation failed" in str(parser.read_back(replace(taken.envelope, refused_because=None)).refused_because)


def test_writes_and_rewinds_are_never_duplicates_and_round_trip(parser: Parser) -> None:
    owner = Owner("V1")
    write, rewind = Message("$ECQ/w/V1/a", b"x", mid=7), Message("$ECQ/r/V1", b"earliest", qos=0)
    taken = [parser.build(message) for message in (write, write, rewind, rewind)]
    assert [each.ecq for each in taken] == [*[Append(owner, "a", b"x")] * 2, *[Rewind(owner, 0)] * 2]
    assert all(each.offerable and each.receipt.status is ReceiptStatus.RECORDED for each in taken)
    assert [dict(each.envelope.headers) for each in taken] == [{PACKET_ID: "7"}] * 2 + [{}] * 2
    assert [parser.read_back(each.envelope).ecq for each in taken] == [each.ecq for each in taken]


def test_an_acknowledgement_is_recognised_by_its_client_id(parser: Parser) -> None:
    wire = EcqAck("V1", 5, 1000, epoch=3).to_wire()
    outcome = OutcomeRecord("V1", 5, Outcome.FAILED, 1000, reason='"client_id"').to_wire()
    taken = [
        parser.build_outcome(payload) for payload in (wire, outcome, b'{"client_id": "V1"}', b'{"client_id": "w r", "seq": 1}')
    ]
    assert [each.envelope.topic for each in taken] == ["outcomes/ecq/V1", "outcomes/V1", "outcomes", "outcomes"]
    assert [each.envelope.stream for each in taken] == [Stream.ECQ, *[Stream.OUTCOME] * 3]
    assert [each.envelope.payload for each in taken[:2]] == [wire, outcome]
    assert "not an acknowledgement of a compacted queue" in str(taken[2].refused_because)
    assert parser.read_back(taken[0].envelope).ecq is None
    assert parser.read_back(taken[0].envelope).refused_because is None


@pytest.mark.parametrize("payload", [b"[" * 100_000, b'{"vin": ' + b"9" * 5000, b'{"vin": "\\ud800"}', b"\xff" * 3000])
def test_a_malformed_outcome_has_a_short_reason(parser: Parser, payload: bytes) -> None:
    taken = parser.build_outcome(payload)
    assert "not an outcome record" in str(taken.refused_because)
    assert len(str(taken.refused_because)) < 1000
    frames([taken.envelope])


def test_a_message_read_back_is_offered_unchanged(parser: Parser) -> None:
    payload = json.dumps({"ids": ["V1"], "request_id": "r", "data": base64.b64encode(b"hello").decode()}).encode()
    taken = parser.build(Message(topics.TRIGGER, payload))
    assert taken.trigger is not None
    assert taken.trigger.data_id == sha1_hex(b"hello")
    again = parser.read_back(taken.envelope)
    assert (again.trigger, again.digest, again.seq) == (taken.trigger, taken.digest, taken.seq)
    duplicate = parser.build(Message(topics.TRIGGER, payload))
    assert not parser.read_back(duplicate.envelope).offerable


def test_outcomes_are_recorded_and_malformed_ones_quarantined(parser: Parser) -> None:
    wire = OutcomeRecord("VIN1", 5, Outcome.DELIVERED, 1000).to_wire()
    good, bad = parser.build_outcome(wire), parser.build_outcome(b"{}")
    assert (good.envelope.topic, good.envelope.payload, good.envelope.stream) == ("outcomes/VIN1", wire, Stream.OUTCOME)
    assert "not an outcome record" in str(bad.envelope.refused_because)


def test_the_dedupe_window_counts_from_the_first_and_forgets() -> None:
    window = DedupeWindow(1000)
    start = 1_700_000_000_000
    at = [seq_of(start + ms, 0, 0) for ms in (0, 900, 1001, 1500)]
    assert [window.first("digest", seq) for seq in at] == [at[0], at[0], at[2], at[2]]
    window.correct("digest", at[2], at[1])
    assert window.first("digest", at[3]) == at[1]
    window.forget("digest", at[1])
    assert window.first("digest", at[3]) == at[3]
    assert (window.remaining_ms(at[0], start + 400), window.remaining_ms(at[0], start + 2000)) == (600, -1000)


def test_an_order_to_a_campaign_is_recorded_in_its_stream_and_goes_to_no_queue(parser: Parser) -> None:
    order = campaigns.Pause("maps-47", "ann", why="the map is wrong")

    taken = parser.build(Message(topics.CAMPAIGN, campaigns.encode(order)))

    assert (taken.envelope.stream, taken.receipt.status) == (Stream.CAMPAIGN, ReceiptStatus.RECORDED)
    assert (taken.trigger, taken.data, taken.ecq) == (None, None, None)
    again = parser.read_back(taken.envelope)
    assert (again.trigger, again.data, again.refused_because) == (None, None, None)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b'{"do": "explode", "campaign": "a", "by": "ann"}', "not a record of a campaign: Invalid value 'explode'"),
        (b'{"do": "pause", "campaign": "a b", "by": "ann"}', "not a record of a campaign: campaign: must be 1 to 128"),
        (
            b'{"do": "note", "campaign": "a", "by": "ann", "why": "' + b"x" * 1000 + b'"}',
            "order of 1055 bytes is over max_trigger",
        ),
    ],
)
def test_an_order_that_is_none_is_refused_and_kept(parser: Parser, payload: bytes, reason: str) -> None:
    taken = parser.build(Message(topics.CAMPAIGN, payload))

    assert taken.envelope.stream is Stream.CAMPAIGN
    assert taken.refused_because is not None
    assert taken.refused_because.startswith(reason)
    assert taken.envelope.payload == payload
