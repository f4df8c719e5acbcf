"""The archive: which files are segments, when they began, and what is wrong with the others."""

import gzip
import io
import os
import re
import socket
import subprocess
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from manifold.archive.content import Unreadable
from manifold.archive.formats import decode
from manifold.archive.probing import probe, seqs_of
from manifold.archive.segment import Interval
from manifold.archive.store import Archive
from manifold.contracts.archive_files import SUFFIXES
from manifold.contracts.envelope import SEGMENT_SCHEMA, Envelope, Stream, segment_path, to_arrow
from manifold.contracts.errors import Permanent, Retryable
from manifold.contracts.storage import S3
from tests.pipelines.makers import at, seq_at, trigger


def write(root: Path, *envelopes: Envelope, node: int = 0) -> str:
    path = segment_path(Stream.TRIGGER, envelopes[0].seq, node)
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(to_arrow(envelopes), root / path)
    return path


def content_of(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


HOUR = int(timedelta(hours=1).total_seconds() * 1000)


def test_an_archive_without_folders_has_no_segments(tmp_path: Path) -> None:
    assert Archive(f"file://{tmp_path}/nowhere").segments() == []


def test_a_file_in_place_of_a_folder_is_reported_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / Stream.OUTCOME).write_bytes(b"x")
    with pytest.raises(Permanent, match=r"move it away: .*outcome"):
        Archive(f"file://{tmp_path}").segments()


def test_an_unreachable_store_is_reported_with_address_and_settings() -> None:
    away = S3("http://127.0.0.1:9", "us-east-1", "key", "secret")
    with pytest.raises(Retryable, match=r"s3://lake/archive cannot be read: .*MANIFOLD_S3_"):
        Archive("s3://lake/archive", away).segments()


@pytest.mark.parametrize("folder", ["backfill.parquet", "2025", "dt=2026-03-01/hour=00/part.parquet"])
def test_a_folder_may_have_any_name(tmp_path: Path, folder: str) -> None:
    path = f"trigger/{folder}/part-0.parquet"
    (tmp_path / path).parent.mkdir(parents=True)
    pq.write_table(to_arrow([trigger(1, ["V1"])]), tmp_path / path)
    archive = Archive(f"file://{tmp_path}")
    assert [s.path for s in archive.segments()] == [path]
    assert archive.present([path, f"trigger/{folder}"]) == {path}
    assert [s.path for s in archive.find([path])] == [path]


def test_a_long_interval_begins_with_its_utc_day(tmp_path: Path) -> None:
    before_midnight = write(tmp_path, trigger(-13 * HOUR, ["V1"]))  # 23:00 UTC
    east = timezone(timedelta(hours=5))
    start = at(-14 * HOUR).astimezone(east)
    found = Archive(f"file://{tmp_path}").segments(Interval(start, start + timedelta(days=60)))
    assert [s.path for s in found] == [before_midnight]


def test_segments_are_listed_by_path_and_unfinished_files_are_not(tmp_path: Path) -> None:
    late, early = write(tmp_path, trigger(HOUR, ["V1"])), write(tmp_path, trigger(0, ["V1"]))
    folder = (tmp_path / early).parent
    for name in (".hidden.parquet", "_part.parquet", "notes.txt", "1-0.parquet.tmp"):
        (folder / name).write_bytes(b"x")
    assert [s.path for s in Archive(f"file://{tmp_path}").segments()] == [early, late]


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        pytest.param(0, 1, [0], id="begins exactly at from"),
        pytest.param(1, HOUR, [], id="to is not in the interval"),
        pytest.param(1, HOUR + 1, [HOUR], id="the next hour's folder"),
        pytest.param(-HOUR * 24 * 40, HOUR * 24, [0, HOUR], id="longer than a month"),
    ],
)
def test_an_interval_takes_the_segments_that_began_in_it(tmp_path: Path, start: int, end: int, found: list[int]) -> None:
    paths = {ms: write(tmp_path, trigger(ms, ["V1"])) for ms in (0, HOUR)}
    listed = Archive(f"file://{tmp_path}").segments(Interval(at(start), at(end)))
    assert [s.path for s in listed] == [paths[ms] for ms in found]


FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("start", "end"),
    [
        pytest.param(FIRST, LAST, id="all of time"),
        pytest.param(datetime(500, 1, 1, tzinfo=UTC), LAST, id="a year of three digits"),
        pytest.param(datetime(50, 1, 1, tzinfo=UTC), at(1), id="a year of two digits"),
    ],
)
def test_an_interval_may_begin_and_end_at_any_time(tmp_path: Path, start: datetime, end: datetime) -> None:
    path = write(tmp_path, trigger(0, ["V1"]))
    assert [s.path for s in Archive(f"file://{tmp_path}").segments(Interval(start, end))] == [path]


@pytest.mark.parametrize("length", [timedelta(hours=3), timedelta(days=3)])
def test_an_interval_may_reach_the_end_of_time(length: timedelta) -> None:
    folders = list(Interval(LAST - length, LAST).folders())
    assert folders[-1].startswith("dt=9999-12-31")
    assert len(folders) == 4


@pytest.mark.parametrize(
    ("start", "end"),
    [
        pytest.param(FIRST.replace(tzinfo=timezone(timedelta(hours=5))), at(0), id="before the first instant of UTC"),
        pytest.param(at(0), LAST.replace(tzinfo=timezone(timedelta(hours=-5))), id="after the last one"),
    ],
)
def test_an_interval_outside_of_all_time_is_none(start: datetime, end: datetime) -> None:
    with pytest.raises(ValueError, match="is not an interval"):
        Interval(start, end)


def test_a_file_with_a_custom_name_begins_with_its_hour(tmp_path: Path) -> None:
    path = write(tmp_path, trigger(5, ["V1"]))
    strange = (tmp_path / path).rename((tmp_path / path).with_name("from-elsewhere.parquet"))
    (segment,) = Archive(f"file://{tmp_path}").segments(Interval(at(0), at(1)))
    assert segment.path.endswith(strange.name)
    assert segment.began_at == at(0)


def test_a_probe_reports_how_much_a_segment_holds(tmp_path: Path) -> None:
    write(tmp_path, trigger(1, ["V1"]), trigger(7, ["V1"]))
    archive = Archive(f"file://{tmp_path}")
    (probed,) = probe(archive, archive.segments())
    assert (probed.messages, probed.first_seq, probed.last_seq, probed.problem) == (2, seq_at(1), seq_at(7), None)


def test_a_probe_reports_what_is_wrong_with_a_torn_file(tmp_path: Path) -> None:
    path = write(tmp_path, trigger(1, ["V1"]))
    whole = (tmp_path / path).read_bytes()
    (tmp_path / path).write_bytes(whole[: len(whole) // 2])
    archive = Archive(f"file://{tmp_path}")
    (probed,) = probe(archive, archive.segments())
    assert probed.messages == 0
    assert "not a whole Parquet file" in str(probed.problem)


def with_bad_name(column: bytes) -> bytes:
    """A Parquet file with a column whose name is no text."""
    table = to_arrow([trigger(1, ["V1"])]).append_column("depot-of-someone", pa.array([7]))
    sink = io.BytesIO()
    pq.write_table(table, sink, store_schema=False)
    return sink.getvalue().replace(b"depot-of-someone", column)


ONE = to_arrow([trigger(1, ["V1"])])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(content_of(ONE.append_column("seq", ONE["seq"])), "seq .*more than once", id="two columns seq"),
        pytest.param(content_of(ONE.append_column("topic", ONE["topic"])), "topic .*more than once", id="two columns topic"),
        pytest.param(with_bad_name(b"depot-of-some\xffne"), "UnicodeDecodeError", id="a column whose name is no text"),
        pytest.param(
            content_of(ONE.set_column(0, "seq", pa.array([2**64 - 1], pa.uint64()))), "seq of type uint64", id="a seq of 64 bits"
        ),
        pytest.param(content_of(ONE.set_column(0, "seq", pa.array([-5]))), "seq is negative", id="a negative seq"),
        pytest.param(
            content_of(to_arrow([trigger(n, ["V1"]) for n in (1, 2)]).set_column(0, "seq", pa.array([1, None]))),
            "without seq",
            id="one seq is missing",
        ),
    ],
)
def test_a_probe_says_of_any_file_why_it_is_no_segment(tmp_path: Path, content: bytes, problem: str) -> None:
    path = "trigger/of-others.parquet"
    (tmp_path / path).parent.mkdir()
    (tmp_path / path).write_bytes(content)
    archive = Archive(f"file://{tmp_path}")

    (probed,) = probe(archive, archive.segments())

    assert (probed.messages, probed.first_seq, probed.last_seq) == (0, None, None)
    assert re.search(problem, str(probed.problem))
    with pytest.raises(Unreadable):
        decode(path, archive.read(path))


def test_a_footer_that_pyarrow_cannot_make_sense_of_ends_no_process(tmp_path: Path) -> None:
    table = pa.table({"seq": [seq_at(1)], "topic": ["t"], "payload": [b"{}"]})
    optional, required = (
        b"\x25\x02\x18\x03seq",
        b"\x25\x00\x18\x03seq",
    )  # the column in Thrift; its statistics are of an optional one
    content = content_of(table)
    assert content.count(optional) == 1
    (tmp_path / "trigger").mkdir()
    (tmp_path / "trigger/x.parquet").write_bytes(content.replace(optional, required))
    archive = Archive(f"file://{tmp_path}")

    (probed,) = probe(archive, archive.segments())

    assert "not a whole Parquet file" in str(probed.problem)


def test_a_footer_that_counts_other_rows_than_there_are_is_no_segment(tmp_path: Path) -> None:
    content = content_of(to_arrow([trigger(n, ["V1"]) for n in range(50)]))
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    counted, wrong = b"\x16\x64", b"\x16\x66"  # 50 and 51 in Thrift
    (tmp_path / "trigger").mkdir()
    (tmp_path / "trigger/x.parquet").write_bytes(content[:footer] + content[footer:].replace(counted, wrong))
    archive = Archive(f"file://{tmp_path}")

    (probed,) = probe(archive, archive.segments())

    assert probed.messages == 0
    assert probed.problem


def test_the_seqs_of_a_file_with_two_such_columns_are_none(tmp_path: Path) -> None:
    (tmp_path / "trigger").mkdir()
    (tmp_path / "trigger/x.parquet").write_bytes(content_of(ONE.append_column("seq", ONE["seq"])))
    with pytest.raises(Unreadable, match="more than once"):
        seqs_of(Archive(f"file://{tmp_path}"), "trigger/x.parquet")


def test_columns_that_only_the_recorder_writes_may_be_missing() -> None:
    table = to_arrow([trigger(1, ["V1"])]).drop_columns(["qos", "headers", "applied", "refused_because", "stream"])
    assert decode("trigger/x.parquet", content_of(table)).messages.schema.names == SEGMENT_SCHEMA.names


@pytest.mark.parametrize(
    ("table", "word"),
    [
        pytest.param(pa.table({"a": [1]}), "missing", id="another schema"),
        pytest.param(
            to_arrow([trigger(1, ["V1"])]).set_column(0, "seq", pa.array(["x"])),
            "column seq is of type string",
            id="a seq as text",
        ),
        pytest.param(
            to_arrow([trigger(1, ["V1"])]).set_column(0, "seq", pa.array([None], pa.int64())), "without seq", id="no seq"
        ),
        pytest.param(
            to_arrow([trigger(1, ["V1"])]).set_column(0, "seq", pa.array([-1], pa.int64())), "negative", id="negative seq"
        ),
    ],
)
def test_a_parquet_file_that_is_not_a_segment_is_unreadable(table: pa.Table, word: str) -> None:
    with pytest.raises(Unreadable, match=word):
        decode("trigger/x.parquet", content_of(table))


def hour_of(root: Path) -> Path:
    folder = root / "trigger/dt=2026-03-01/hour=12"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def ignored(lines: list[Any]) -> dict[str, str]:
    """The reason for each ignored file, by its name."""
    return {line["path"].rpartition("/")[2]: line["reason"] for line in lines if line["event"] == "file in the archive ignored"}


INT96 = {"use_deprecated_int96_timestamps": True}  # as Spark and Impala write


def test_a_file_name_that_is_not_text_is_skipped_and_the_rest_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, trigger(1, ["V1"]))
    (hour_of(tmp_path) / os.fsdecode(b"r\xfcck.txt")).touch()
    (tmp_path / "trigger" / os.fsdecode(b"\xff")).mkdir()
    archive = Archive(f"file://{tmp_path}")

    with capture_logs() as lines:
        assert [segment.path for segment in archive.segments()] == [path]
    assert ignored(lines) == {"r\\udcfcck.txt'": "its name is not UTF-8", "\\udcff'": "its name is not UTF-8"}
    assert archive.present([path]) == {path}


def test_links_multiply_no_message(tmp_path: Path) -> None:
    path = write(tmp_path, trigger(1, ["V1"]))
    (hour_of(tmp_path) / "latest").symlink_to(".", target_is_directory=True)
    (hour_of(tmp_path) / "copy.parquet").symlink_to(tmp_path / path)

    with capture_logs() as lines:
        assert [segment.path for segment in Archive(f"file://{tmp_path}").segments()] == [path]
    assert ignored(lines) == {"latest": "it is a link", "copy.parquet": "it is a link"}


@pytest.mark.parametrize("name", ["pipe.jsonl", "dt=2026-03-01/pipe.jsonl"])
def test_what_is_neither_file_nor_folder_is_passed_by(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, trigger(1, ["V1"]))
    os.mkfifo(tmp_path / "trigger" / name)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "trigger" / "socket.jsonl"))
        archive = Archive(f"file://{tmp_path}")

        assert [segment.path for segment in archive.segments()] == [path]
        assert [segment.path for segment in archive.find([f"trigger/{name}", "trigger/socket.jsonl", path])] == [path]


def test_no_depth_of_folders_stops_the_others(tmp_path: Path) -> None:
    path = write(tmp_path, trigger(1, ["V1"]))
    folder = os.open(tmp_path / "trigger", os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(os.open("deep.jsonl", os.O_CREAT, dir_fd=folder))
    os.close(folder)

    try:
        deep, usual = [segment.path for segment in Archive(f"file://{tmp_path}").segments()]
    finally:
        subprocess.run(["rm", "-r", tmp_path / "trigger/d"], check=True)  # deeper than Python's own function takes away

    assert (deep.count("/"), deep.rpartition("/")[2], usual) == (1201, "deep.jsonl", path)


def test_an_archive_that_is_itself_a_link_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "real", trigger(1, ["V1"]))
    (tmp_path / "archive").symlink_to(tmp_path / "real", target_is_directory=True)

    assert [segment.path for segment in Archive(f"file://{tmp_path}/archive").segments()] == [path]


@pytest.mark.parametrize(
    "folder", ["_temporary/0/task_0", ".spark-staging-1/dt=2026-03-01", "dt=2026-03-01/hour=12/_temporary/0"]
)
def test_uncommitted_files_are_ignored_at_any_depth(tmp_path: Path, folder: str) -> None:
    unfinished = tmp_path / "trigger" / folder
    unfinished.mkdir(parents=True)
    pq.write_table(to_arrow([trigger(1, ["V1"])]), unfinished / "part-0.parquet")

    assert Archive(f"file://{tmp_path}").segments() == []


@pytest.mark.parametrize("name", ["a.PARQUET", "a.pq", "a.ndjson", "a.JSONL", "a.jsonl.GZ"])
def test_foreign_file_names_are_read(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, trigger(1, ["V1"]))
    content = (tmp_path / path).read_bytes()
    (tmp_path / path).unlink()
    if "j" in name.lower():
        line = b'{"topic": "$SDV-FANOUT/trigger", "seq": 7, "payload": "{}"}\n'
        content = gzip.compress(line) if name.endswith("GZ") else line
    (hour_of(tmp_path) / name).write_bytes(content)
    (segment,) = Archive(f"file://{tmp_path}").segments()

    assert len(decode(segment.path, content).messages) == 1


@pytest.mark.parametrize(
    ("name", "told"), [("_SUCCESS", False), (".hidden.parquet", False), ("part-0", True), ("sink.csv", True)]
)
def test_other_files_are_not_segments_and_are_named(tmp_path: Path, name: str, told: bool) -> None:
    (hour_of(tmp_path) / name).write_bytes(b"x")

    with capture_logs() as lines:
        assert Archive(f"file://{tmp_path}").segments() == []
        assert Archive(f"file://{tmp_path}").segments() == []  # is told once
    assert len(lines) == told
    assert ignored(lines) == ({name: f"its name ends in none of {', '.join(SUFFIXES)}"} if told else {})


LINE = b'{"topic": "$SDV-FANOUT/trigger", "seq": %d, "payload": "{}"%s}'


@pytest.mark.parametrize(
    ("content", "messages"),
    [
        pytest.param(b"\xef\xbb\xbf" + LINE % (7, b""), 1, id="a byte order mark"),
        pytest.param(LINE % (7, b', "received_at": "2026-03-01t12:00:00z"'), 1, id="a time in lower case"),
        pytest.param(
            LINE % (7, b', "received_at": 1772366400000, "timestamp": "2026-11-24T11:00:00Z"'), 1, id="an unknown field"
        ),
        pytest.param(
            b"[" + b",\n".join(LINE % (seq, b"") for seq in (7, 8, 9)) + b"]\n", 3, id="an array with one element per line"
        ),
        pytest.param(
            b"[\n" + b",\n".join(LINE % (seq, b"") for seq in (7, 8)) + b"\n]\n",
            2,
            id="an array with brackets on their own lines",
        ),
    ],
)
def test_foreign_lines_are_messages(content: bytes, messages: int) -> None:
    found = decode("trigger/dt=2026-03-01/hour=12/a.jsonl", content).messages

    assert found["refused_because"].to_pylist() == [None] * messages


def test_a_seq_that_is_not_an_integer_is_refused_with_its_column() -> None:
    """Consecutive seqs are equal as doubles, so two messages would collapse."""
    rows = to_arrow([trigger(1, ["V1"])])
    place = rows.schema.get_field_index("seq")

    with pytest.raises(Unreadable, match=r"column seq is of type double; write it as a 64-bit integer"):
        decode("trigger/a.parquet", content_of(rows.set_column(place, "seq", rows["seq"].cast(pa.float64(), safe=False))))


def test_a_probe_counts_no_messages_if_seq_is_not_an_integer(tmp_path: Path) -> None:
    """Otherwise the ledger would count more messages than the reader finds."""
    rows = to_arrow([trigger(n, ["V1"]) for n in (1, 2, 3)])
    path = write(tmp_path, trigger(1, ["V1"]))
    place = rows.schema.get_field_index("seq")
    pq.write_table(rows.set_column(place, "seq", rows["seq"].cast(pa.float64(), safe=False)), tmp_path / path)
    archive = Archive(f"file://{tmp_path}")

    (probed,) = probe(archive, archive.segments())

    assert (probed.messages, "column seq is of type double" in str(probed.problem)) == (0, True), probed


@pytest.mark.parametrize(("how", "tz"), [({"version": "2.6"}, "UTC"), ({"version": "2.6"}, None), (INT96, "UTC"), (INT96, None)])
def test_nanoseconds_are_truncated(how: dict[str, Any], tz: str | None) -> None:
    rows = to_arrow([trigger(1, ["V1"])])
    place = rows.schema.get_field_index("received_at")
    instants = pa.array([1_772_366_400_123_456_789], pa.timestamp("ns", tz=tz))
    pq.write_table(rows.set_column(place, "received_at", instants), into := io.BytesIO(), **how)

    found = decode("trigger/a.parquet", into.getvalue()).messages

    assert found["received_at"].cast(pa.int64()).to_pylist() == [1_772_366_400_123_456]
