"""Files that others wrote: each example of docs/archives.md goes in, and what is no segment holds nothing back."""

import gzip
import re
from dataclasses import replace
from pathlib import Path

from archive.formats import decode
from archive.segment import Interval
from archive.store import Archive
from contracts.envelope import Stream
from contracts.tables import DATA, IDS, OUTCOMES, QUARANTINE, SEGMENTS
from tests.pipelines.conftest import Place
from tests.pipelines.makers import at, trigger
from tests.servers import ROOT

EXAMPLE = re.compile(r"^`((?:trigger|data|outcome)/[^`]+)`[^\n]*\n\n```json\n(.*?)```", re.MULTILINE | re.DOTALL)
EXAMPLES = dict(EXAMPLE.findall((ROOT / "docs" / "archives.md").read_text()))
HOUR = 3_600_000


def put(place: Place, path: str, content: bytes) -> None:
    file = place.file(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def test_the_examples_of_the_page_go_in_beside_files_that_are_none(place: Place) -> None:
    assert len(EXAMPLES) == 5
    for path, text in EXAMPLES.items():
        put(place, path, gzip.compress(text.encode()) if path.endswith(".gz") else text.encode())
    put(place, "trigger/torn.jsonl.gz", gzip.compress(b"{}")[:9])
    put(place, "trigger/half.jsonl", b'{"topic": "t"}\n' + EXAMPLES["trigger/dt=2026-03-01/hour=12/depot-7.jsonl"].encode()[:-5])
    put(place, "data/empty.parquet", b"")
    done = place.ingest("first")
    assert place.rows(IDS, "vin", "request_id") == [
        ("TEST-1", "task_map_1"),
        ("TEST-1", "task_map_1"),  # half.jsonl: without a seq, the same message under another path is another one
        ("TEST-1", "task_map_2"),
        ("TEST-2", "task_map_1"),
        ("TEST-2", "task_map_1"),
        ("TEST-3", "task_map_3"),
    ]
    assert place.rows(DATA, "data_id", "payload") == [
        ("map-1", b"tiles of the north"),
        ("map-2", b"\x00\xfffiles"),
        ("map-3", b"\xfftiles"),
    ]
    assert place.rows(OUTCOMES, "vin", "outcome") == [("TEST-2", "delivered")]
    names = ["data/empty.parquet", "trigger/half.jsonl:1", "trigger/half.jsonl:3", "trigger/torn.jsonl.gz"]
    assert place.rows(QUARANTINE, "topic") == names
    refused = [path for path, reason in place.rows(SEGMENTS, "path", "refused_because") if reason]
    assert refused == ["data/empty.parquet", "trigger/torn.jsonl.gz"]
    assert (done.segments, place.ingest("second").segments) == (8, 0)


def test_a_file_without_seqs_is_refused_if_its_seqs_meet_those_of_another(place: Place) -> None:
    line = b'{"topic": "$SDV-FANOUT/trigger", "received_at": "2026-03-01T12:00:00Z", "payload": "{}"}'
    met = decode("trigger/nameless.jsonl", line).seqs.tolist()
    path = place.write(Stream.TRIGGER, [replace(trigger(1, ["V1"]), seq=met[0])])
    place.ingest("first")
    put(place, "trigger/nameless.jsonl", line)
    place.ingest("second")
    ((topic, reason),) = place.rows(QUARANTINE, "topic", "reason")
    assert topic == "trigger/nameless.jsonl"
    assert "another name" in reason
    assert place.rows(IDS, "vin") == ["V1"]
    assert place.rows(SEGMENTS, "path", "messages") == [(path, 1), ("trigger/nameless.jsonl", 0)]


def test_a_broken_file_does_not_hide_its_messages_from_a_good_copy(place: Place) -> None:
    messages = [trigger(ms, [f"W{ms}"]) for ms in range(10, 60)]
    broken = place.write(Stream.TRIGGER, messages)
    content = place.file(broken).read_bytes()
    place.file(broken).write_bytes(content[:4] + b"\xff" * 200 + content[204:])  # the footer is sound
    place.ingest("first")
    place.write(Stream.TRIGGER, messages, node=9)
    assert place.ingest("second").skipped == 0
    assert len(place.rows(IDS)) == 50


def test_an_interval_finds_files_that_others_have_named(tmp_path: Path) -> None:
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
