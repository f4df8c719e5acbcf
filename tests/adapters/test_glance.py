"""A glance at the lake gives what PyIceberg gives, or says that it cannot."""

from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path

import pytest
from pydantic import SecretStr
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import EqualTo

from adapters._avro import reader_of, records
from adapters.glance import NotHere, OneOf, batch_of, entries_of, rows, segments_since
from adapters.lake import ensure_tables, open_catalog, read_batch, read_entries, read_segments, where
from contracts.seq import datetime_of, seq_of
from contracts.settings import Settings
from contracts.tables import IDS, OUTCOMES, SEGMENTS
from tests.adapters.test_lake import append, ids_row

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(home=tmp_path_factory.mktemp("glance"))


def seq_after(hours: int) -> int:
    return seq_of(int((NOON + timedelta(hours=hours)).timestamp() * 1000), 0, 0)


def outcome_row(seq: int, vin: str) -> dict[str, object]:
    at = datetime_of(seq)
    return {
        "vin": vin,
        "seq": seq,
        "outcome": "delivered",
        "accepted_at": at,
        "ended_at": at + timedelta(seconds=1),
        "attempts": 2,
    }


@pytest.fixture(scope="module")
def catalog(settings: Settings) -> Catalog:
    """Two days, each with a run of its own; one entry has its outcome twice, and one row is gone again."""
    catalog = open_catalog(settings)
    ensure_tables(catalog)
    for hours in (0, 24):
        seqs = [seq_after(hours), seq_after(hours + 1)]
        append(catalog, IDS, *(ids_row(seq, vin) for seq in seqs for vin in ("V1", "V2", "V22")))
        append(catalog, OUTCOMES, outcome_row(seqs[0], "V1"), outcome_row(seqs[0], "V1"), outcome_row(seqs[0], "V22"))
        path = {"path": f"trigger/{hours}.parquet", "stream": "trigger", "messages": 1, "run_id": "r"}
        append(catalog, SEGMENTS, {**path, "ingested_at": NOON + timedelta(hours=hours)})
    append(catalog, IDS, ids_row(seq_after(2), "V1") | {"request_id": "gone"})
    catalog.load_table(IDS.identifier).delete(where(EqualTo, "request_id", "gone"))
    return catalog


@pytest.mark.parametrize("vin", ["V1", "V2", "V22", "stranger"])
def test_the_entries_of_a_vehicle_are_those_that_pyiceberg_finds(settings: Settings, catalog: Catalog, vin: str) -> None:
    found = entries_of(settings, vin)

    assert found == read_entries(catalog, vin)
    assert len(found) == (0 if vin == "stranger" else 4)


@pytest.mark.parametrize("seq", [seq_after(0), seq_after(25)])
def test_a_batch_is_the_one_that_pyiceberg_finds(settings: Settings, catalog: Catalog, seq: int) -> None:
    request_id = str(ids_row(seq)["request_id"])
    found = batch_of(settings, request_id)

    assert found == read_batch(catalog, request_id)
    assert {life.vin for life in found} == {"V1", "V2", "V22"}


def test_segments_are_told_from_an_instant_on(settings: Settings, catalog: Catalog) -> None:
    since = NOON + timedelta(hours=1)

    assert segments_since(settings, since) == read_segments(catalog, since) == {"trigger/24.parquet"}


def test_a_column_that_a_file_lacks_is_empty(settings: Settings, catalog: Catalog) -> None:
    found = rows(settings, IDS, ("vin", "later"), "seq", OneOf({seq_after(0)}))

    assert sorted(row["vin"] for row in found) == ["V1", "V2", "V22"]
    assert {row["later"] for row in found} == {None}


def test_a_lake_that_has_not_begun_holds_nothing(tmp_path: Path) -> None:
    assert entries_of(Settings(home=tmp_path), "V1") == []


def test_a_lake_elsewhere_is_left_to_pyiceberg() -> None:
    with pytest.raises(NotHere, match="no sqlite"):
        entries_of(Settings(catalog_uri=SecretStr("postgresql://db/lake")), "V1")


@pytest.mark.parametrize(
    ("schema", "raw", "value"),
    [
        pytest.param("long", b"\x01", -1, id="a negative number"),
        pytest.param("long", b"\x80\x01", 64, id="a number of two bytes"),
        pytest.param(["null", "string"], b"\x02\x04hi", "hi", id="a union"),
        pytest.param(
            {"type": "array", "items": "int"}, b"\x03\x04\x02\x04\x00", [1, 2], id="an array whose block tells its size"
        ),
        pytest.param({"type": "map", "values": "bytes"}, b"\x02\x02k\x02v\x00", {"k": b"v"}, id="a map"),
        pytest.param({"type": "fixed", "name": "f", "size": 2}, b"ab", b"ab", id="fixed"),
        pytest.param("boolean", b"\x01", True, id="a boolean"),
        pytest.param("double", b"\0\0\0\0\0\0\xf8?", 1.5, id="a double"),
    ],
)
def test_avro_values_are_read_as_its_specification_writes_them(schema: object, raw: bytes, value: object) -> None:
    assert reader_of(schema)(BytesIO(raw)) == value


def test_what_is_no_avro_file_is_refused() -> None:
    with pytest.raises(ValueError, match="no Avro"):
        list(records(b"PAR1"))
