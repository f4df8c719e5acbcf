"""Many payloads from the lake: in chunks, one file at a time, in memory independent of their number."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog

from manifold.contracts.tables import DATA, INSTANT, META
from manifold.lake.payloads import PIECE_BYTES, StoredPayloads, read_payloads
from tests.support.lake_rows import append_payloads
from tests.support.memory import counted_arrow_memory

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
KIB, MIB = 1 << 10, 1 << 20
Piece = Mapping[str, bytes | None]


@contextmanager
def taking_at_most(bytes_: int) -> Iterator[None]:
    """The peak of Arrow's memory during the block."""
    with counted_arrow_memory() as pool:
        yield
    assert 0 < pool.max_memory() <= bytes_


def append_groups(catalog: Catalog, folder: Path, payloads: Mapping[str, bytes], *, rows: int) -> None:
    """Write one file of payloads, one a second, in row groups of this size and small pages, as Spark does; return their names."""
    append_payloads(catalog, payloads, at=NOON)
    instants = pa.array([NOON + timedelta(seconds=n) for n in range(len(payloads))], INSTANT)
    names, table = catalog.load_table(META.identifier), catalog.load_table(DATA.identifier)
    named = names.scan().to_arrow().cast(META.arrow_schema)
    names.overwrite(named.set_column(named.column_names.index("stored_at"), META.arrow_schema.field("stored_at"), instants))
    stored = table.scan().to_arrow().cast(DATA.arrow_schema)
    table.delete()
    file, column = folder / "groups.parquet", DATA.arrow_schema.field("first_seen_at")
    stored = stored.set_column(stored.column_names.index("first_seen_at"), column, instants)
    pq.write_table(stored, file, row_group_size=rows, data_page_size=KIB, write_batch_size=1)
    table.add_files([f"file://{file}"])


def days(catalog: Catalog, count: int, *, each: int = 3) -> dict[str, bytes]:
    """This many days with a file of this many payloads each."""
    stored: dict[str, bytes] = {}
    for day in range(count):
        payloads = {f"d{day}-{n}": b"%d of day %d" % (n, day) for n in range(each)}
        append_payloads(catalog, payloads, at=NOON + timedelta(days=day))
        stored |= payloads
    return stored


def data_files(catalog: Catalog) -> list[Path]:
    """The payload files, oldest day first."""
    paths = (task.file.file_path for task in catalog.load_table(DATA.identifier).scan().plan_files())
    return sorted((Path(path.removeprefix("file://")) for path in paths), key=lambda path: path.parent.name)


def size(piece: Piece) -> int:
    return sum(len(payload or b"") for payload in piece.values())


def take(pieces: Iterator[Piece], found: dict[str, bytes | None]) -> None:
    """Collect the chunks in `found`; each payload must come once."""
    for piece in pieces:
        assert not found.keys() & piece.keys()
        found |= piece


def all_of(pieces: Iterator[Piece]) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    take(pieces, found)
    return found


def test_no_chunk_exceeds_the_bound_and_every_payload_comes_once(catalog: Catalog) -> None:
    payloads = {f"d{n}": os.urandom(10 * KIB) for n in range(100)}
    append_payloads(catalog, payloads, at=NOON)

    pieces = list(StoredPayloads(catalog).pieces(payloads, 64 * KIB))

    assert all_of(iter(pieces)) == payloads
    assert max(map(size, pieces)) <= 64 * KIB


def test_a_payload_larger_than_the_bound_comes_alone(catalog: Catalog) -> None:
    payloads = {"small": b"s", "giant": os.urandom(3 * PIECE_BYTES), "other": b"o"}
    append_payloads(catalog, payloads, at=NOON)

    pieces = list(StoredPayloads(catalog).pieces(payloads))

    assert all_of(iter(pieces)) == payloads
    assert ["giant"] in [list(piece) for piece in pieces]


def test_missing_payloads_are_reported_before_any_read(catalog: Catalog) -> None:
    payloads = days(catalog, 2)
    pieces = StoredPayloads(catalog).pieces([*payloads, "never"])
    for file in data_files(catalog):
        file.unlink()

    assert next(pieces) == {"never": None}


@pytest.mark.parametrize("rows", [4, 80], ids=["in small groups", "in one group"])
def test_more_than_memory_allows_is_read_in_chunks(catalog: Catalog, tmp_path: Path, rows: int) -> None:
    payloads = {f"d{n}": os.urandom(512 * KIB) for n in range(80)}  # 40 MiB
    append_groups(catalog, tmp_path, payloads, rows=rows)
    assert pq.ParquetFile(tmp_path / "groups.parquet").num_row_groups == 80 / rows

    with taking_at_most(5 * PIECE_BYTES):
        sizes = [size(piece) for piece in StoredPayloads(catalog).pieces(payloads)]

    assert sum(sizes) == 40 * MIB
    assert max(sizes) <= PIECE_BYTES


def test_only_the_row_group_of_a_payload_is_read_from_a_large_file(catalog: Catalog, tmp_path: Path) -> None:
    payloads = {f"d{n}": os.urandom(512 * KIB) for n in range(80)}
    append_groups(catalog, tmp_path, payloads, rows=1)
    with taking_at_most(2 * MIB):
        assert read_payloads(catalog, ["d70"]) == {"d70": payloads["d70"]}


def test_deduplicated_payloads_are_not_all_unpacked_at_once(catalog: Catalog) -> None:
    payloads = dict.fromkeys((f"d{n}" for n in range(200)), os.urandom(512 * KIB))  # 100 MiB, of which a file stores one copy
    append_payloads(catalog, payloads, at=NOON)
    (file,) = data_files(catalog)
    assert file.stat().st_size < 2 * MIB

    with taking_at_most(5 * PIECE_BYTES):
        sizes = [size(piece) for piece in StoredPayloads(catalog).pieces(payloads)]

    assert sum(sizes) == 100 * MIB
    assert max(sizes) <= PIECE_BYTES


def test_payloads_far_apart_in_many_groups_are_found(catalog: Catalog, tmp_path: Path) -> None:
    payloads = {f"d{n}": b"payload %d" % n for n in range(1000)}
    append_groups(catalog, tmp_path, payloads, rows=7)
    some = {name: payload for n, (name, payload) in enumerate(payloads.items()) if n % 13 == 0 or n == 999}
    assert read_payloads(catalog, some.keys()) == some


def test_files_replaced_by_compaction_are_looked_up_again(catalog: Catalog) -> None:
    payloads = days(catalog, 3)
    pieces = StoredPayloads(catalog).pieces(payloads, 1)
    first = next(pieces)
    old = data_files(catalog)
    table = catalog.load_table(DATA.identifier)
    table.overwrite(table.scan().to_arrow())
    for file in old:
        file.unlink()

    assert all_of(pieces) | first == payloads
    assert not set(old) & set(data_files(catalog))


def test_names_whose_files_are_gone_are_looked_up_again(catalog: Catalog) -> None:
    payloads = days(catalog, 2)
    stored = StoredPayloads(catalog)
    names = catalog.load_table(META.identifier)
    old = [Path(task.file.file_path.removeprefix("file://")) for task in names.scan().plan_files()]
    names.overwrite(names.scan().to_arrow())
    for file in old:
        file.unlink()

    assert all_of(stored.pieces(payloads)) == payloads


def test_an_unreadable_file_costs_only_its_own_payloads(catalog: Catalog) -> None:
    payloads = days(catalog, 4)
    data_files(catalog)[1].write_bytes(b"no Parquet")
    found: dict[str, bytes | None] = {}

    with pytest.raises(pa.ArrowInvalid):
        take(StoredPayloads(catalog).pieces([*payloads, "never"]), found)

    assert found == {"never": None} | {name: payload for name, payload in payloads.items() if not name.startswith("d1-")}


def test_files_that_stay_missing_are_an_error_and_not_a_miss(catalog: Catalog) -> None:
    payloads = days(catalog, 2)
    data_files(catalog)[0].unlink()
    found: dict[str, bytes | None] = {}

    with pytest.raises(FileNotFoundError):
        take(StoredPayloads(catalog).pieces(payloads), found)

    assert found == {name: payload for name, payload in payloads.items() if name.startswith("d1-")}


def test_the_first_of_several_rows_of_a_name_wins(catalog: Catalog) -> None:
    append_payloads(catalog, {"d": b"first"}, at=NOON, seq=1)
    names = catalog.load_table(META.identifier).scan().to_arrow()
    append_payloads(catalog, {"d": b"second"}, at=NOON, seq=2)
    catalog.load_table(META.identifier).overwrite(names)
    table = catalog.load_table(DATA.identifier)
    table.overwrite(table.scan().to_arrow().sort_by([("seq", "descending")]))  # both in one file, the later one first

    assert read_payloads(catalog, ["d"]) == {"d": b"first"}


def test_a_lake_with_names_but_no_payloads_finds_nothing(catalog: Catalog) -> None:
    payloads = days(catalog, 1)
    catalog.load_table(DATA.identifier).delete()
    assert all_of(StoredPayloads(catalog).pieces(payloads)) == dict.fromkeys(payloads)
    catalog.drop_table(DATA.identifier)
    assert all_of(StoredPayloads(catalog).pieces(payloads)) == dict.fromkeys(payloads)
