"""Files that others wrote: each example of docs/guides/archives.md is ingested, and a file that is no segment blocks no other."""

import gzip
import re
from dataclasses import replace
from pathlib import Path

from manifold.archive.formats import decode
from manifold.archive.segment import Interval
from manifold.archive.store import Archive
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import DATA, IDS, OUTCOMES, QUARANTINE, SEGMENTS
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import at, trigger
from tests.support.servers import ROOT

EXAMPLE = re.compile(r"^`((?:trigger|data|outcome)/[^`]+)`[^\n]*\n\n```json\n(.*?)```", re.MULTILINE | re.DOTALL)
EXAMPLES = dict(EXAMPLE.findall((ROOT / "docs" / "guides" / "archives.md").read_text()))
HOUR = 3_600_000


def put(spark_lake: SparkLake, path: str, content: bytes) -> None:
    file = spark_lake.file(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def test_the_examples_of_the_page_are_ingested_next_to_other_files(spark_lake: SparkLake) -> None:
    assert len(EXAMPLES) == 5
    for path, text in EXAMPLES.items():
        put(spark_lake, path, gzip.compress(text.encode()) if path.endswith(".gz") else text.encode())
    put(spark_lake, "trigger/torn.jsonl.gz", gzip.compress(b"{}")[:9])
    put(
        spark_lake,
        "trigger/half.jsonl",
        b'{"topic": "t"}\n' + EXAMPLES["trigger/dt=2026-03-01/hour=12/depot-7.jsonl"].encode()[:-5],
    )
    put(spark_lake, "data/empty.parquet", b"")
    done = spark_lake.ingest("first")
    assert spark_lake.rows(IDS, "vin", "request_id") == [
        ("TEST-1", "task_map_1"),
        ("TEST-1", "task_map_1"),  # half.jsonl: without a seq, the same message under another path is a different one
        ("TEST-1", "task_map_2"),
        ("TEST-2", "task_map_1"),
        ("TEST-2", "task_map_1"),
        ("TEST-3", "task_map_3"),
    ]
    assert spark_lake.rows(DATA, "data_id", "payload") == [
        ("map-1", b"tiles of the north"),
        ("map-2", b"\x00\xfffiles"),
        ("map-3", b"\xfftiles"),
    ]
    assert spark_lake.rows(OUTCOMES, "vin", "outcome") == [("TEST-2", "delivered")]
    names = ["data/empty.parquet", "trigger/half.jsonl:1", "trigger/half.jsonl:3", "trigger/torn.jsonl.gz"]
    assert spark_lake.rows(QUARANTINE, "topic") == names
    refused = [path for path, reason in spark_lake.rows(SEGMENTS, "path", "refused_because") if reason]
    assert refused == ["data/empty.parquet", "trigger/torn.jsonl.gz"]
    assert (done.segments, spark_lake.ingest("second").segments) == (8, 0)


def test_a_file_without_seqs_is_refused_if_its_seqs_overlap_another(spark_lake: SparkLake) -> None:
    line = b'{"topic": "$SDV-FANOUT/trigger", "received_at": "2026-03-01T12:00:00Z", "payload": "{}"}'
    met = decode("trigger/nameless.jsonl", line).seqs.tolist()
    path = spark_lake.write(Stream.TRIGGER, [replace(trigger(1, ["V1"]), seq=met[0])])
    spark_lake.ingest("first")
    put(spark_lake, "trigger/nameless.jsonl", line)
    spark_lake.ingest("second")
    ((topic, reason),) = spark_lake.rows(QUARANTINE, "topic", "reason")
    assert topic == "trigger/nameless.jsonl"
    assert "another name" in reason
    assert spark_lake.rows(IDS, "vin") == ["V1"]
    assert spark_lake.rows(SEGMENTS, "path", "messages") == [(path, 1), ("trigger/nameless.jsonl", 0)]


def test_a_broken_file_does_not_hide_its_messages_in_a_good_copy(spark_lake: SparkLake) -> None:
    messages = [trigger(ms, [f"W{ms}"]) for ms in range(10, 60)]
    broken = spark_lake.write(Stream.TRIGGER, messages)
    content = spark_lake.file(broken).read_bytes()
    spark_lake.file(broken).write_bytes(content[:4] + b"\xff" * 200 + content[204:])  # the footer is intact
    spark_lake.ingest("first")
    spark_lake.write(Stream.TRIGGER, messages, node=9)
    assert spark_lake.ingest("second").skipped == 0
    assert len(spark_lake.rows(IDS)) == 50


def test_an_interval_finds_files_with_foreign_names(tmp_path: Path) -> None:
    names = (
        "trigger/emqx@a/2026-03-01T12:30:00Z_N0.jsonl",
        "trigger/2026-03-01T15:10:00+02:00.json.gz",
        "trigger/dt=2026-03-01/hour=12/x.jsonl",
        "trigger/nameless.jsonl",
        "trigger/_part/2026-03-01T12:30:00Z.jsonl",
        "trigger/emqx@a/2026-03-01T12:30:00Z.csv",
    )
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    archive = Archive(f"file://{tmp_path}")
    hours = [Interval(at(start * HOUR), at((start + 1) * HOUR)) for start in (0, 1)]
    assert [[s.path for s in archive.segments(hour)] for hour in hours] == [sorted((names[0], names[2])), [names[1]]]
    assert names[3] in [s.path for s in archive.segments()]
