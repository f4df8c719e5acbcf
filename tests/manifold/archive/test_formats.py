"""Foreign file formats: accepted forms, defaults and refusals. Pure: bytes in, messages out."""

import gzip
import io
import json
import subprocess
import sys
from codecs import BOM_UTF8
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manifold.archive.content import DERIVED, Unreadable
from manifold.archive.formats import ENDS, decode
from manifold.contracts.envelope import SEGMENT_SCHEMA, to_arrow
from manifold.contracts.seq import MAX_SEQ, SKIPPED_MS, datetime_of, unix_ms_of
from manifold.contracts.topics import TRIGGER
from tests.pipelines.makers import NOON_MS, at, seq_at, trigger

JSONL = "trigger/depot.jsonl"
NESTED = ["[" * depth + "]" * depth for depth in (*range(900, 1000, 9), 100_000)]


def parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def lines(*rows: dict[str, Any] | str) -> bytes:
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows).encode()


def message(**more: Any) -> dict[str, Any]:
    return {"topic": TRIGGER, "payload": "{}", "seq": seq_at(1), **more}


DECODE_AND_COUNT_THREADS = """
import sys, psutil
from manifold.archive.formats import decode
content, me = sys.stdin.buffer.read(), psutil.Process()
before = me.num_threads()
decode("trigger/depot.parquet", content)
print(me.num_threads() - before)
"""


def test_decoding_starts_no_thread_that_may_abort_a_process_that_ends() -> None:
    content = parquet(to_arrow([trigger(ms, ["V1"]) for ms in range(3)]))
    command = [sys.executable, "-c", DECODE_AND_COUNT_THREADS]
    assert subprocess.run(command, input=content, capture_output=True, check=True).stdout == b"0\n"


def rows_of(content: bytes, path: str = JSONL) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = decode(path, content).messages.to_pylist()
    return found


def test_unknown_columns_are_ignored_and_missing_columns_are_null() -> None:
    table = to_arrow([trigger(1, ["V1"])]).drop_columns(["qos", "headers"]).append_column("depot", pa.array([7]))
    (row,) = rows_of(parquet(table), "trigger/x.parquet")
    assert list(row) == SEGMENT_SCHEMA.names
    assert (row["qos"], row["headers"], row["seq"]) == (None, None, seq_at(1))


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
def test_parquet_of_any_compression_is_read(compression: str) -> None:
    assert rows_of(parquet(to_arrow([trigger(1, ["V1"])]), compression=compression), "trigger/x.parquet")[0]["seq"] == seq_at(1)


@pytest.mark.parametrize(
    "received",
    [
        pytest.param(pa.array([at(3)], pa.timestamp("ns", tz="Europe/Berlin")), id="another zone and unit"),
        pytest.param(pa.array([NOON_MS + 3]), id="milliseconds"),
        pytest.param(pa.array([NOON_MS + 3], pa.uint64()), id="milliseconds without a sign"),
        pytest.param(pa.array([at(3).isoformat()]), id="text"),
        pytest.param(pa.array([at(3).replace(tzinfo=None)], pa.timestamp("ms")), id="no zone is UTC"),
    ],
)
def test_times_are_accepted_in_several_formats(received: pa.Array) -> None:
    table = pa.table({"topic": [TRIGGER], "payload": ["{}"], "received_at": received})
    (row,) = rows_of(parquet(table), "trigger/x.parquet")
    assert row["received_at"] == at(3)
    assert unix_ms_of(row["seq"]) == NOON_MS + 3


def test_the_stream_is_that_of_the_folder_whatever_a_column_says() -> None:
    table = to_arrow([trigger(1, ["V1"])])
    for other in (table.drop_columns(["stream"]), table.set_column(2, "stream", pa.array(["x"]))):
        assert rows_of(parquet(other), "trigger/x.parquet")[0]["stream"] == "trigger"


def test_a_parquet_file_with_a_seq_needs_no_time() -> None:
    (row,) = rows_of(parquet(pa.table({"topic": [TRIGGER], "payload": [b"{}"], "seq": [seq_at(5)]})), "trigger/x.parquet")
    assert row["received_at"] == at(5)


def test_a_seq_repeated_in_one_file_is_one_message() -> None:
    found = rows_of(lines(message(payload="first"), message(seq=seq_at(2)), message(payload="again")))
    assert [(row["seq"], row["payload"]) for row in found] == [(seq_at(1), b"first"), (seq_at(2), b"{}")]


def test_without_a_seq_messages_are_ordered_by_time_then_row() -> None:
    times = (5, 3, 5, 3)
    content = lines(*({"topic": TRIGGER, "payload": str(n), "received_at": NOON_MS + ms} for n, ms in enumerate(times)))
    found = sorted(rows_of(content), key=lambda row: row["seq"])
    assert [row["payload"] for row in found] == [b"1", b"3", b"0", b"2"]
    assert [datetime_of(row["seq"]) for row in found] == [at(3), at(3), at(5), at(5)]
    assert all(row["seq"] & DERIVED for row in found)
    assert rows_of(content) == rows_of(content)
    assert {row["seq"] for row in found}.isdisjoint(row["seq"] for row in rows_of(content, "trigger/another.jsonl"))


def test_no_seq_is_made_in_the_skipped_millisecond() -> None:
    (row,) = rows_of(lines({"topic": TRIGGER, "payload": "{}", "received_at": SKIPPED_MS}))
    assert unix_ms_of(row["seq"]) == SKIPPED_MS + 1


def test_a_line_that_is_not_a_message_is_refused_and_others_are_ingested() -> None:
    content = lines(
        message(), '{"topic": "x', message(seq=-1), "", message(payload=None), message(payload_base64="?", seq=seq_at(2))
    )
    good, *bad = rows_of(content)
    assert good["seq"] == seq_at(1)
    assert [row["topic"] for row in bad] == [f"{JSONL}:{line}" for line in (2, 3, 5, 6)]
    assert all(row["seq"] < 0 and row["refused_because"] for row in bad)
    assert bad[0]["payload"] == b'{"topic": "x'
    assert len({row["seq"] for row in bad}) == len(bad)


@pytest.mark.parametrize(
    "bad",
    [
        *(json.dumps(message(pub_props={"User-Property": {"k": "NESTED"}})).replace('"NESTED"', nested) for nested in NESTED),
        *(json.dumps(message(nobody="NESTED")).replace('"NESTED"', nested) for nested in NESTED),
        '{"topic": "t", "payload": "x", "seq": ' + "9" * 5000 + "}",
        '{"topic": "t", "payload": "x", "received_at": 1e999}',
        '{"topic": "\\ud800", "payload": "x", "seq": 1}',
        '{"topic": "t", "payload": "\\ud800x", "seq": 1}',
        '{"topic": "t", "payload": "x", "seq": 1, "headers": {"\\ud800": "\\udfff"}}',
        '{"topic": "t", "payload": "x", "seq": 1, "received_at": "0001-01-01T00:00:00+23:59"}',
    ],
)
def test_no_line_stops_the_others(bad: str) -> None:
    found = rows_of(lines(message(seq=seq_at(2)), bad))
    assert found[0]["seq"] == seq_at(2)
    assert len(found) == 2
    assert found[1]["refused_because"] is None or found[1]["payload"] == bad.encode()


def test_a_first_line_that_begins_like_an_array_stops_no_other() -> None:
    found = rows_of(lines("[" * 100_000, '["\\ud800"', message()))
    assert [row["refused_because"] is None for row in found] == [True, False, False]


def test_files_with_byte_order_marks_may_be_joined() -> None:
    one, two = lines(message()), lines(message(seq=seq_at(2)))
    found = rows_of(BOM_UTF8 + one + b"\n" + BOM_UTF8 + two)
    assert [(row["seq"], row["refused_because"]) for row in found] == [(seq_at(1), None), (seq_at(2), None)]


def test_duplicate_column_names_make_a_file_no_segment() -> None:
    table = to_arrow([trigger(1, ["V1"])])
    with pytest.raises(Unreadable):
        decode("trigger/x.parquet", parquet(table.append_column("topic", table["topic"])))


def test_bytes_that_text_cannot_hold_are_not_taken_as_data() -> None:
    content = lines(message(payload="a\ufffdb"))
    assert "base64" in rows_of(content, "data/depot.jsonl")[0]["refused_because"]
    assert rows_of(content)[0]["refused_because"] is None  # a trigger decides itself what it may contain


def test_broker_headers_cannot_impersonate_manifold() -> None:
    properties = {"User-Property": {"origin": "planning", "sdv-duplicate-of": "1"}}
    assert rows_of(lines(message(pub_props=properties)))[0]["headers"] == [("origin", "planning")]


@pytest.mark.parametrize(
    ("path", "content", "word"),
    [
        pytest.param(JSONL, b"\x00\x01 not JSON", "no line of it", id="not JSON"),
        pytest.param(
            JSONL, lines(message(), message(seq=None, received_at=NOON_MS)), "no seq although", id="seq on some lines only"
        ),
        pytest.param("trigger/x.jsonl.gz", gzip.compress(lines(message()))[:-9], "gzip", id="torn gzip"),
        pytest.param("trigger/x.jsonl.zst", b"not zstd", "zstd", id="not zstd"),
        pytest.param("trigger/x.parquet", b"", "Parquet", id="empty"),
        pytest.param(
            "trigger/x.parquet", parquet(pa.table({"topic": ["t"], "payload": ["p"]})), "one of them", id="neither seq nor time"
        ),
        pytest.param(
            "trigger/x.parquet",
            parquet(pa.table({"topic": ["t"], "payload": ["p"], "received_at": [datetime(1999, 1, 1, tzinfo=UTC)]})),
            "2020",
            id="a time out of range for a seq",
        ),
    ],
)
def test_a_file_that_is_not_a_segment_has_a_reason(path: str, content: bytes, word: str) -> None:
    with pytest.raises(Unreadable, match=word):
        decode(path, content)


@pytest.mark.parametrize("column", ["topic", "refused_because", "headers"])
def test_invalid_utf_8_makes_a_file_no_segment(column: str) -> None:
    """Such text would raise in any code that decodes it and end the run."""
    text = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"]).buffers())
    columns = {"topic": pa.array(["t"]), "payload": pa.array(["p"]), "seq": pa.array([seq_at(1)])}
    columns[column] = pa.MapArray.from_arrays([0, 1], pa.array(["name"]), text) if column == "headers" else text
    with pytest.raises(Unreadable, match="UTF8"):
        decode("trigger/x.parquet", parquet(pa.table(columns)))


@pytest.mark.parametrize("us", [-(2**62), -62_135_596_800_000_001, 253_402_300_800_000_000, 2**62])
def test_an_instant_outside_the_calendar_makes_a_file_no_segment(us: int) -> None:
    instants = pa.array([0, us], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    columns = {"topic": ["t"] * 2, "payload": ["p"] * 2, "seq": [seq_at(1), seq_at(2)], "received_at": instants}
    with pytest.raises(Unreadable, match="no year"):
        decode("trigger/x.parquet", parquet(pa.table(columns)))


def test_the_first_and_last_representable_instants_are_accepted() -> None:
    columns = {"topic": ["t"] * 2, "payload": ["p"] * 2, "seq": [seq_at(1), seq_at(2)], "received_at": list(ENDS)}
    found = rows_of(parquet(pa.table(columns)), "trigger/x.parquet")
    assert tuple(row["received_at"] for row in found) == ENDS


def test_the_largest_seq_is_accepted() -> None:
    assert rows_of(lines(message(seq=MAX_SEQ, received_at=NOON_MS)))[0]["seq"] == MAX_SEQ


def test_an_empty_file_of_lines_holds_nothing() -> None:
    assert rows_of(b"\n") == []
