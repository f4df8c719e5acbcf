"""Accepted messages of compacted queues, and refusals with their reasons."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from manifold.contracts.ecq import MAX_KEY_BYTES, MAX_KEY_LEVELS, Append, EcqAck, Rewind, parse_ecq, rewind_target
from manifold.contracts.messages import LATEST_MS, Refused
from manifold.contracts.names import is_service, is_vin
from manifold.contracts.seq import MAX_SEQ, datetime_of, first_seq_at
from manifold.contracts.topics import ecq_of, ecq_rewind_topic, ecq_topic, ecq_write_topic

LIMIT = 100
ANY_TEXT = st.text(st.characters(codec=None), max_size=600)  # lone surrogates included
HEADS = st.sampled_from(["", "$ECQ/", "$ECQ/w/", "$ECQ/r/", "$ECQ/w/V1/", "$ECQ/r/V1", "$ECQ/w", "$ECQ/x/", "$SDV-FANOUT/"])


def parse(topic: str, payload: bytes = b"x") -> Append | Rewind | Refused:
    return parse_ecq(topic, payload, max_data_bytes=LIMIT)


@pytest.mark.parametrize(
    ("key", "payload"),
    [
        pytest.param("a", b"", id="empty payload"),
        pytest.param("a/b/c", b"x", id="several levels"),
        pytest.param("/", b"x", id="empty levels"),
        pytest.param(" ", b"x", id="a space"),
        pytest.param("é" * (MAX_KEY_BYTES // 2), b"x", id="512 bytes of UTF-8"),
        pytest.param("/" * (MAX_KEY_LEVELS - 1), b"x", id="125 levels"),
        pytest.param("w", b"\x00\xff" * (LIMIT // 2), id="the largest allowed"),
    ],
)
def test_a_write_is_accepted_unchanged(key: str, payload: bytes) -> None:
    assert parse(ecq_write_topic("V1", key), payload) == Append("V1", key, payload)  # type: ignore[arg-type]
    assert ecq_of(ecq_topic("V1", key)) == ("V1", key)


@pytest.mark.parametrize(
    ("topic", "payload", "reason"),
    [
        pytest.param("$ECQ", b"", "unknown topic", id="root"),
        pytest.param("$ECQ/w", b"", "unknown topic", id="no client id"),
        pytest.param("$ECQ/V1/a", b"", "unknown topic", id="a consumer's own topic"),
        pytest.param("$ECQ/w/", b"", "names no client id", id="empty client id"),
        pytest.param("$ECQ/w//a", b"", "names no client id", id="empty client id before a key"),
        pytest.param("$ECQ/r/", b"earliest", "names no client id", id="rewind without a client id"),
        pytest.param("$ECQ/w/V1", b"", "names no key", id="no key"),
        pytest.param("$ECQ/w/V1/", b"", "names no key", id="empty key"),
        pytest.param("$ECQ/w/w/a", b"", 'client id "w" is a level', id="w"),
        pytest.param("$ECQ/w/r/a", b"", 'client id "r" is a level', id="r"),
        pytest.param("$ECQ/r/w", b"earliest", 'client id "w" is a level', id="rewind of w"),
        pytest.param("$ECQ/w/sdv-pub-1/a", b"", "is a service's", id="a service"),
        pytest.param("$ECQ/w/a b/a", b"", "must be 1 to 64", id="no owner"),
        pytest.param(f"$ECQ/w/{'V' * 65}/a", b"", "must be 1 to 64", id="client id too long"),
        pytest.param("$ECQ/w/\ufffd/a", b"", "must be 1 to 64", id="bytes that are not UTF-8"),
        pytest.param("$ECQ/r/V1/a", b"earliest", "must be 1 to 64", id="rewind of a key"),
        pytest.param("$ECQ/w/V1/" + "k" * 513, b"", "of 513 bytes is over 512", id="key too long"),
        pytest.param("$ECQ/w/V1/" + "é" * 257, b"", "of 514 bytes is over 512", id="key too long in UTF-8"),
        pytest.param("$ECQ/w/V1/" + "/" * 125, b"", "of 126 levels is over 125", id="too many levels"),
        pytest.param("$ECQ/w/V1/a+", b"", "contains +, #", id="plus"),
        pytest.param("$ECQ/w/V1/#", b"", "contains +, #", id="hash"),
        pytest.param("$ECQ/w/V1/a\0b", b"", "a control character", id="NUL"),
        pytest.param("$ECQ/w/V1/a\n", b"", "a control character", id="a control character"),
        pytest.param("$ECQ/w/V1/a\x85", b"", "a control character", id="a C1 control character"),
        pytest.param("$ECQ/w/V1/\uffff", b"", "noncharacter", id="a non-character code point"),
        pytest.param("$ECQ/w/V1/\U0010fffe", b"", "noncharacter", id="another non-character"),
        pytest.param("$ECQ/w/V1/\ud800", b"", "noncharacter", id="a lone surrogate"),
        pytest.param("$ECQ/w/V1/a", b"x" * 101, "over max_data_bytes=100", id="payload too large"),
        pytest.param("$ECQ/r/V1", b"", "send earliest, a seq, or an ISO 8601 time", id="an empty word"),
        pytest.param("$ECQ/r/V1", b"latest", '"latest" is not a position', id="another word"),
        pytest.param("$ECQ/r/V1", b"-1", "is not a position", id="negative"),
        pytest.param("$ECQ/r/V1", b"1.5", "is not a position", id="not an integer"),
        pytest.param("$ECQ/r/V1", str(MAX_SEQ + 1).encode(), "is not a position", id="no seq"),
        pytest.param("$ECQ/r/V1", b"9" * 5000, "is not a position", id="5,000 digits"),
        pytest.param("$ECQ/r/V1", b"2026-01-31T08:00:00", "is not a position", id="no time zone"),
        pytest.param("$ECQ/r/V1", b"2026-01-31", "is not a position", id="a day"),
        pytest.param("$ECQ/r/V1", b"\xff\xfe", "is not a position", id="not text"),
        pytest.param("$ECQ/r/V1", "٣".encode(), "is not a position", id="non-ASCII digits"),
        pytest.param("$ECQ/r/V1", b"x" * 10_000_000, "is not a position", id="10 MB"),
    ],
)
def test_a_refusal_has_a_short_reason(topic: str, payload: bytes, reason: str) -> None:
    refused = parse(topic, payload)
    assert isinstance(refused, Refused)
    assert reason in refused.reason
    assert len(refused.reason) < 500


@pytest.mark.parametrize(
    ("word", "first_seq"),
    [
        (b"earliest", 0),
        (b" earliest\n", 0),
        (b"0", 0),
        (b"00912039632898621440", None),
        (b"912039632898621440", 912039632898621440),
        (str(MAX_SEQ).encode(), MAX_SEQ),
        (b"2026-01-31T08:00:00Z", first_seq_at(datetime(2026, 1, 31, 8, tzinfo=UTC))),
        (b"2026-01-31T09:00:00+01:00", first_seq_at(datetime(2026, 1, 31, 8, tzinfo=UTC))),
        (b"2019-12-31T00:00:00Z", 0),
        (b"9999-12-31T23:59:59Z", MAX_SEQ),
        (b"0001-01-01T00:00:00+23:59", 0),
        (b"9999-12-31T23:59:59-23:59", MAX_SEQ),
    ],
)
def test_a_rewind_names_the_first_seq_to_resend(word: bytes, first_seq: int | None) -> None:
    parsed = parse(ecq_rewind_topic("V1"), word)
    assert (parsed.first_seq if isinstance(parsed, Rewind) else None) == first_seq


@given(
    st.one_of(st.tuples(HEADS, ANY_TEXT).map("".join), ANY_TEXT), st.binary(max_size=200) | st.text(max_size=60).map(str.encode)
)
@example("$ECQ/w/V1/\udfff", b"")
def test_any_topic_and_bytes_give_a_message_or_a_refusal(topic: str, payload: bytes) -> None:
    match parse(topic, payload):
        case Append(client_id, key, kept):
            assert (ecq_write_topic(client_id, key), kept) == (topic, payload)
            assert is_vin(client_id)
            assert not is_service(client_id)
            assert not set(key) & {"+", "#", "\0"}
            assert 0 < len(key.encode()) <= MAX_KEY_BYTES
        case Rewind(client_id, first_seq):
            assert ecq_rewind_topic(client_id) == topic
            assert 0 <= first_seq <= MAX_SEQ
        case Refused(reason):
            assert 0 < len(reason) < 1000


@given(st.datetimes(timezones=st.timezones()) | st.datetimes(timezones=st.just(UTC)))
def test_a_rewind_to_any_instant_resends_nothing_before_it(instant: datetime) -> None:
    first_seq = rewind_target(instant.isoformat())
    assert first_seq is not None
    if 0 < first_seq < MAX_SEQ:
        assert timedelta(0) <= datetime_of(first_seq) - instant < timedelta(milliseconds=1)


def test_rfc_3339_allows_lower_case() -> None:
    upper = rewind_target("2026-03-01T12:00:00Z")
    assert upper is not None
    assert rewind_target("2026-03-01t12:00:00z") == upper


@given(st.text(max_size=80))
def test_any_word_is_a_seq_or_nothing(word: str) -> None:
    first_seq = rewind_target(word)
    assert first_seq is None or 0 <= first_seq <= MAX_SEQ


@given(
    st.builds(EcqAck, st.sampled_from(["V1", "a-b"]), st.integers(0, MAX_SEQ), st.integers(0, LATEST_MS), st.integers(0, MAX_SEQ))
)
def test_an_acknowledgement_round_trips_whole_and_completed(record: EcqAck) -> None:
    assert EcqAck.from_wire(record.to_wire()) == record
    assert EcqAck.from_wire(record.to_wire_prefix() + b',"epoch":%d}' % record.epoch) == record


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"client_id": "w r", "seq": 1, "acked_ms": 1}, id="client id"),
        pytest.param({"client_id": "V1", "seq": -1, "acked_ms": 1}, id="seq"),
        pytest.param({"client_id": "V1", "seq": 1, "acked_ms": 1, "epoch": MAX_SEQ + 1}, id="epoch"),
        pytest.param({"client_id": "V1", "seq": "1", "acked_ms": 1}, id="type"),
        pytest.param({"client_id": "V1"}, id="missing"),
        pytest.param([], id="a list"),
    ],
)
def test_a_malformed_acknowledgement_raises_value_error(fields: object) -> None:
    with pytest.raises(ValueError, match="not an acknowledgement of a compacted queue"):
        EcqAck.from_wire(json.dumps(fields).encode())
