"""Journal records: after any crash, exactly the complete records are read."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from manifold.archive.records import Annotation, frame, frames, scan
from manifold.contracts.envelope import DUPLICATE_OF, Envelope, Stream

BORN = datetime(2026, 8, 1, 12, tzinfo=UTC)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ENVELOPES = st.lists(
    st.builds(
        Envelope,
        seq=st.integers(1, (1 << 63) - 1),
        received_at=st.integers(0, 10**15).map(lambda us: BORN + timedelta(microseconds=us)),
        stream=st.sampled_from(Stream),
        topic=TEXT,
        payload=st.binary(max_size=40),
        qos=st.integers(0, 2),
        headers=st.dictionaries(TEXT, TEXT, max_size=2),
        refused_because=st.none() | TEXT,
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda envelope: envelope.seq,
)


@given(ENVELOPES)
def test_a_record_is_read_back_as_written(envelopes: list[Envelope]) -> None:
    raw = frames(envelopes)
    content = scan(raw)
    assert content.length == len(raw)
    assert content.envelopes() == sorted(envelopes, key=lambda envelope: envelope.seq)


@given(ENVELOPES, st.data())
def test_a_tail_torn_at_any_byte_costs_only_the_torn_record(envelopes: list[Envelope], data: st.DataObject) -> None:
    ends = [len(frames(envelopes[: n + 1])) for n in range(len(envelopes))]
    cut = data.draw(st.integers(0, ends[-1]))
    content = scan(frames(envelopes)[:cut])
    whole = [envelope.seq for envelope, end in zip(envelopes, ends, strict=True) if end <= cut]
    assert [message.seq for message in content.messages] == whole
    assert content.length == max([end for end in ends if end <= cut], default=0)


@given(ENVELOPES, st.integers(0, 64))
def test_trailing_zeros_add_no_records(envelopes: list[Envelope], zeros: int) -> None:
    raw = frames(envelopes)
    assert scan(raw + bytes(zeros)).length == len(raw)


@given(ENVELOPES, st.data())
def test_a_damaged_byte_hides_its_record_and_never_invents_one(envelopes: list[Envelope], data: st.DataObject) -> None:
    raw = bytearray(frames(envelopes))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    kept = [message.seq for message in scan(bytes(raw)).messages]
    assert kept == [envelope.seq for envelope in envelopes][: len(kept)]
    assert scan(bytes(raw)).length <= place


def test_the_last_note_on_a_message_counts() -> None:
    envelope = Envelope(7, BORN, Stream.TRIGGER, "t", b"{}")
    raw = frames([envelope]) + frame(Annotation(7, applied=False)) + frame(Annotation(7, applied=True))
    assert [e.applied for e in scan(raw).envelopes()] == [True]
    raw += frame(Annotation(7, applied=False, duplicate_of=5))
    (noted,) = scan(raw).envelopes()
    assert (noted.duplicate_of, noted.headers[DUPLICATE_OF]) == (5, "5")
    (noted,) = scan(raw).envelopes({7: Annotation(7, applied=False, refused_because="differs")})
    assert noted.refused_because == "differs"
