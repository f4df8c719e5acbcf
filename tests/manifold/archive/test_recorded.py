"""The archive: deterministic paths, whole files, and the same result when sealing is repeated."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manifold.archive.recorded import RecordedSegments, seq_ago
from manifold.archive.store import Archive
from manifold.contracts.envelope import SEGMENT_SCHEMA, Envelope, Stream, segment_path, to_arrow
from manifold.contracts.seq import MAX_COUNTER, MAX_SEQ, datetime_of, first_seq_at

NODE = 3
NOON = datetime(2026, 8, 1, 12, tzinfo=UTC)


def envelope(at: datetime, stream: Stream = Stream.TRIGGER, counter: int = 0) -> Envelope:
    seq = first_seq_at(at) + (NODE << 12) + counter
    return Envelope(seq, at, stream, "t", b"p", headers={"a": "b"}, applied=True)


@pytest.fixture
def archive(tmp_path: Path) -> RecordedSegments:
    return RecordedSegments(Archive(f"file://{tmp_path}/archive"))


def test_each_stream_and_hour_has_its_segment(archive: RecordedSegments, tmp_path: Path) -> None:
    trigger, later, data = envelope(NOON), envelope(NOON + timedelta(hours=1)), envelope(NOON, Stream.DATA, 1)
    paths = archive.seal([later, data, trigger], NODE)
    assert paths == [
        f"data/dt=2026-08-01/hour=12/{data.seq}-3.parquet",
        f"trigger/dt=2026-08-01/hour=12/{trigger.seq}-3.parquet",
        f"trigger/dt=2026-08-01/hour=13/{later.seq}-3.parquet",
    ]
    assert pq.read_schema(tmp_path / "archive" / paths[0]).equals(SEGMENT_SCHEMA)
    assert archive.read(paths[1]) == [trigger]
    assert [path.name for path in (tmp_path / "archive").rglob("*") if path.is_file() and path.name.startswith(".")] == []


def test_sealing_again_changes_no_segment_and_loses_no_message(archive: RecordedSegments, tmp_path: Path) -> None:
    first, second = envelope(NOON), envelope(NOON, counter=1)
    (path,) = archive.seal([first], NODE)
    written_at = (tmp_path / "archive" / path).stat().st_mtime_ns
    paths = archive.seal([replace(first, applied=False), second], NODE)  # the same file again with one more message
    assert (tmp_path / "archive" / path).stat().st_mtime_ns == written_at
    assert [archive.read(each) for each in paths] == [[first], [second]]


def test_reading_back_starts_at_a_seq_and_keeps_the_order(archive: RecordedSegments) -> None:
    mine = [envelope(NOON + timedelta(minutes=30 * n)) for n in range(6)]
    for each in mine:
        archive.seal([each], NODE)
    archive.seal([envelope(NOON, counter=9)], 4)
    assert list(archive.recorded_since(Stream.TRIGGER, mine[2].seq, NODE)) == mine[2:]
    assert len(list(archive.recorded_since(Stream.TRIGGER, 0))) == 7
    assert list(archive.recorded_since(Stream.DATA, 0)) == []


def test_the_last_seq_is_that_of_this_node(archive: RecordedSegments) -> None:
    assert archive.last_seq(NODE) == 0
    archive.seal([envelope(NOON, counter=n) for n in (0, MAX_COUNTER)], NODE)
    archive.seal([envelope(NOON - timedelta(days=1))], NODE)
    archive.seal([envelope(NOON + timedelta(days=1))], 4)
    assert archive.last_seq(NODE) == envelope(NOON, counter=MAX_COUNTER).seq


ODD: dict[str, pa.Table | None] = {
    "without streams": to_arrow([envelope(NOON)]).drop_columns(["stream"]),
    "of a stream that nobody knows": to_arrow([envelope(NOON)]).set_column(2, "stream", pa.array(["x"])),
}
BROKEN: dict[str, pa.Table | None] = {
    "no Parquet": None,
    "a topic that is no text": to_arrow([envelope(NOON)]).set_column(3, "topic", pa.array([b"\xff"]).view(pa.string())),
    "an instant of no year": to_arrow([envelope(NOON)]).set_column(
        1, "received_at", pa.array([1 << 62]).cast(pa.timestamp("us", tz="UTC"))
    ),
    "a seq of 64 bits": to_arrow([envelope(NOON)]).set_column(0, "seq", pa.array([2**64 - 1], pa.uint64())),
    "seqs of others": to_arrow([replace(envelope(NOON), seq=MAX_SEQ)]),
}


@pytest.mark.parametrize("table", [pytest.param(table, id=name) for name, table in (ODD | BROKEN).items()])
def test_a_file_of_others_under_a_recorders_name_hides_no_message(
    archive: RecordedSegments, tmp_path: Path, table: pa.Table | None
) -> None:
    mine = [envelope(NOON + timedelta(minutes=n)) for n in (1, 2)]
    archive.seal(mine[:1], NODE)
    others = tmp_path / "archive" / segment_path(Stream.TRIGGER, envelope(NOON).seq + 1, NODE)
    pq.write_table(table, others) if table is not None else others.write_bytes(b"junk")
    last = others.with_name(f"{mine[1].seq}-{NODE}.parquet")
    last.write_bytes(others.read_bytes())

    assert mine[0] in list(archive.recorded_since(Stream.TRIGGER, 0))
    assert mine[0] in archive.latest(Stream.TRIGGER, NODE, 5)
    assert archive.last_seq(NODE) in (mine[0].seq, envelope(NOON).seq, mine[1].seq)


def test_seconds_are_counted_back_from_a_seq() -> None:
    assert datetime_of(seq_ago(envelope(NOON).seq, 120)) == NOON - timedelta(minutes=2)
