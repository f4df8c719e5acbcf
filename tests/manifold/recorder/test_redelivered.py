"""One publish is one message even if the broker redelivers it; an equal message published twice is two."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifold.archive.recorded import RecordedSegments
from manifold.archive.records import frames, scan
from manifold.archive.store import Archive
from manifold.contracts.envelope import Stream
from manifold.contracts.messages import ReceiptStatus
from manifold.messaging.mqtt import Message
from manifold.recorder._dedupe import DedupeWindow
from manifold.recorder._parser import Parser
from manifold.recorder._rate_limit import BURST
from manifold.recorder._recorded import Recorded
from manifold.recorder._redelivered import MAX_REMEMBERED, RedeliveredMessages
from manifold.settings import Settings

TOPIC = "$ECQ/w/V1/a"


def again(topic: str = TOPIC, payload: bytes = b"x", *, mid: int = 7) -> Message:
    """The message as a broker redelivers it after a lost connection."""
    return Message(topic, payload, dup=True, mid=mid, connection=2)


class Taking:
    """A parser with its knowledge of packet ids."""

    def __init__(self) -> None:
        self.parser, self.resent = Parser(Settings(), DedupeWindow(1)), RedeliveredMessages()

    def take(self, mid: int, topic: str = TOPIC, payload: bytes = b"x", *, qos: int = 1, connection: int = 1) -> int:
        """Record a message; return its seq."""
        incoming = self.parser.build(Message(topic, payload, qos=qos, mid=mid, connection=connection))
        self.resent.remember(incoming)
        return incoming.seq

    def seq_of(self, message: Message) -> int | None:
        return seq_of(self.resent, message)


def seq_of(resent: RedeliveredMessages, message: Message) -> int | None:
    found = resent.find(message)
    return None if found is None else found.seq


def test_a_redelivery_has_the_seq_of_its_record() -> None:
    taking = Taking()
    first, second = taking.take(7), taking.take(8)
    assert [taking.seq_of(again(mid=mid)) for mid in (7, 8, 7)] == [first, second, first]


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(again(mid=8), id="another packet id"),
        pytest.param(again(payload=b"y"), id="other bytes"),
        pytest.param(again("$ECQ/w/V1/b"), id="another key"),
        pytest.param(again("$ECQ/w/V1/", b"a\0x"), id="another split of the topic"),
        pytest.param(Message(TOPIC, b"x", mid=7), id="no DUP"),
        pytest.param(Message(TOPIC, b"x", qos=0, dup=True), id="QoS 0"),
    ],
)
def test_a_different_message_is_recorded(message: Message) -> None:
    taking = Taking()
    taking.take(7)
    assert taking.seq_of(message) is None


def test_a_reused_packet_id_means_the_last_message_with_it() -> None:
    taking = Taking()
    taking.take(7)
    newer = taking.take(7, payload=b"y")
    assert taking.seq_of(again()) is None
    assert taking.seq_of(again(payload=b"y")) == newer
    taking.take(7, "$SDV-FANOUT/data/d")
    assert taking.seq_of(again(payload=b"y")) is None


def test_a_message_is_forgotten_half_way_round_the_packet_ids() -> None:
    taking = Taking()
    seq = taking.take(7)
    for mid in range(8, 7 + MAX_REMEMBERED):
        taking.take(mid, "$SDV-FANOUT/data/d" if mid % 2 else TOPIC)
    assert taking.seq_of(again()) == seq
    taking.take(7 + MAX_REMEMBERED, "$SDV-FANOUT/data/d")
    assert taking.seq_of(again()) is None


def test_a_new_session_knows_nothing_of_the_previous_one() -> None:
    taking = Taking()
    taking.take(7)
    taking.resent.session_began(2)
    assert taking.seq_of(again()) is None
    taking.take(7)  # received on the previous connection and parsed late
    assert taking.seq_of(again()) is None
    assert taking.seq_of(again()) is None
    seq = taking.take(7, connection=2)
    assert taking.seq_of(again()) == seq


def test_the_next_process_restores_packet_ids_from_journal_and_archive(tmp_path: Path) -> None:
    taking, node = Taking(), 0
    taken = [taking.parser.build(Message(TOPIC, b"x", mid=mid)) for mid in (65_534, 65_535, 1, 2)]
    archive = RecordedSegments(Archive(f"file://{tmp_path}"))
    archive.seal([each.envelope for each in taken[:2]], node)
    journal = scan(frames(each.envelope for each in taken[2:])).envelopes()
    resent = RedeliveredMessages()
    resent.restore([*archive.latest(Stream.ECQ, node, MAX_REMEMBERED), *journal])
    assert [seq_of(resent, again(mid=mid)) for mid in (65_534, 65_535, 1, 2, 3)] == [*(each.seq for each in taken), None]
    assert [e.seq for e in archive.latest(Stream.ECQ, node, 1)] == [taken[1].seq]
    assert archive.latest(Stream.ECQ, node + 1, MAX_REMEMBERED) == []


@given(st.lists(st.text(max_size=6), max_size=5))
def test_an_invalid_packet_id_in_an_archive_is_ignored(ids: list[str]) -> None:
    taking = Taking()
    taken = [taking.parser.build(Message(TOPIC, b"x", mid=1)) for _ in ids]
    for each, packet_id in zip(taken, ids, strict=True):
        each.envelope.headers["sdv-packet-id"] = packet_id  # type: ignore[index]
    taking.resent.restore(each.envelope for each in taken)


REWIND = "$ECQ/r/V1"


@pytest.mark.parametrize("is_known", ["by this process", "from what an earlier one has recorded"])
def test_redelivered_messages_are_answered_as_before_refused_rewinds_included(is_known: str) -> None:
    taking = Taking()
    taken = [taking.parser.build(Message(REWIND, b"earliest", mid=mid, connection=1)) for mid in range(1, BURST)]
    taken.append(taking.parser.build(Message(REWIND, b"some day", mid=BURST, connection=1)))  # not a rewind position
    taken.append(taking.parser.build(Message(REWIND, b"earliest", mid=BURST + 1, connection=1)))  # one too many
    resent, parser = taking.resent, taking.parser
    if is_known == "by this process":
        for each in taken:
            resent.remember(each)
    else:
        resent, parser = RedeliveredMessages(), Parser(Settings(), DedupeWindow(1))
        resent.restore(each.envelope for each in taken)

    messages = [again(each.envelope.topic, each.envelope.payload, mid=mid) for mid, each in enumerate(taken, 1)]
    answered = [parser.build(message, None, resent.find(message)) for message in messages]
    assert all(each.is_redelivered for each in answered)
    assert [each.receipt for each in answered] == [each.receipt for each in taken]
    assert [each.receipt.status for each in taken] == [*[ReceiptStatus.RECORDED] * (BURST - 1), *[ReceiptStatus.REFUSED] * 2]
    assert "ecq_rewinds_per_hour" in str(answered[-1].receipt.reason)


def test_a_truncated_refused_message_is_recognised_on_full_redelivery() -> None:
    taking, large = Taking(), b"x" * 5_000
    seq = taking.take(7, REWIND, large)
    assert taking.seq_of(again(REWIND, large)) == seq


@pytest.mark.parametrize(("refused", "status"), [(False, ReceiptStatus.RECORDED), (True, ReceiptStatus.REFUSED)])
def test_a_redelivery_is_answered_by_its_record_despite_changed_limits(refused: bool, status: ReceiptStatus) -> None:
    size = 2_000
    parser = Parser(Settings(max_data_bytes=size if refused else size - 1), DedupeWindow(1))
    incoming = parser.build(again(payload=b"x" * size), None, Recorded(5, refused))
    assert (incoming.receipt.seq, incoming.receipt.status, incoming.is_redelivered) == (5, status, True)
