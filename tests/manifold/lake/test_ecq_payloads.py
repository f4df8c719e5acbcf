"""Compacted messages from the lake: found without a table scan."""

import os
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from manifold.contracts.seq import datetime_of, first_seq_at
from manifold.contracts.tables import ECQ_PAYLOAD
from manifold.lake.catalog import open_catalog
from manifold.lake.ecq_payloads import StoredMessage, messages, read_messages
from manifold.settings import Settings
from tests.manifold.lake.test_payloads import NOON, bytes_read

KIB = 1024


def seq_on(day: int, n: int = 0) -> int:
    return first_seq_at(NOON + timedelta(days=day)) + n


def append(catalog: Catalog, *rows: tuple[str, int, str, bytes]) -> None:
    stored = [
        {"client_id": client_id, "key": key, "seq": seq, "ts": datetime_of(seq), "payload": payload}
        for client_id, seq, key, payload in rows
    ]
    catalog.load_table(ECQ_PAYLOAD.identifier).append(pa.Table.from_pylist(stored, schema=ECQ_PAYLOAD.arrow_schema))


def test_messages_are_found_by_client_and_seq(catalog: Catalog) -> None:
    append(catalog, ("c1", seq_on(0), "a", b"one"), ("c2", seq_on(0, 1), "a/b", b""), ("c1", seq_on(0, 2), "a", b"two"))
    append(catalog, ("c1", seq_on(40), "a", b"three"))
    assert read_messages(catalog, [("c1", seq_on(0)), ("c2", seq_on(0, 1)), ("c1", seq_on(40)), ("c1", seq_on(41))]) == {
        ("c1", seq_on(0)): StoredMessage("a", b"one"),
        ("c2", seq_on(0, 1)): StoredMessage("a/b", b""),
        ("c1", seq_on(40)): StoredMessage("a", b"three"),
    }
    assert read_messages(catalog, [("c2", seq_on(0))]) == {}  # of another client
    assert read_messages(catalog, []) == {}


def test_a_lake_without_tables_has_no_message(tmp_path: Path) -> None:
    assert read_messages(open_catalog(Settings(home=tmp_path)), [("c1", 1)]) == {}


def test_an_unreadable_file_costs_only_its_own_messages(catalog: Catalog) -> None:
    append(catalog, ("c1", seq_on(0), "a", b"one"))
    append(catalog, ("c1", seq_on(40), "a", b"three"))
    (first, _) = sorted(
        task.file.file_path.removeprefix("file://") for task in catalog.load_table(ECQ_PAYLOAD.identifier).scan().plan_files()
    )
    Path(first).write_bytes(b"nothing of Parquet")
    found: dict[tuple[str, int], StoredMessage] = {}

    def read() -> None:
        for piece in messages(catalog, [("c1", seq_on(0)), ("c1", seq_on(40))]):
            found.update(piece)

    with pytest.raises(Exception, match="Parquet"):
        read()
    assert list(found.values()) == [StoredMessage("a", b"three")]


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts bytes as Linux does")
def test_a_point_read_does_not_grow_with_the_table(catalog: Catalog) -> None:
    def add_day(day: int) -> None:
        append(catalog, *((f"c{n}", seq_on(day, n), "a", os.urandom(64 * KIB)) for n in range(20)))

    add_day(0)
    small = bytes_read(lambda: read_messages(catalog, [("c7", seq_on(0, 7))]))
    for day in range(1, 9):
        add_day(day)
    large = bytes_read(lambda: read_messages(catalog, [("c7", seq_on(0, 7))]))
    assert large < small + 200 * KIB  # metadata; a day has 1.2 MiB
