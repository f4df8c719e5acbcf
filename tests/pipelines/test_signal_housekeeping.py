"""Maintenance of signal tables: compared with the archive, repaired, expired, restored."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from pyiceberg.expressions import EqualTo

from manifold.archive.store import Archive
from manifold.contracts.envelope import Stream
from manifold.contracts.errors import SettingsError
from manifold.contracts.tables import SIGNAL_TABLES, XRAY_PROCESSED, XRAY_RAW, XRAY_STATUS
from manifold.lake.catalog import where
from manifold.lake.key_ring import new_key_line
from pipelines.ingest.maintenance_run import MaintenanceRun
from pipelines.maintenance.check import check
from pipelines.maintenance.compact import compact
from pipelines.maintenance.garbage_signals import drop_signals
from pipelines.maintenance.repair import forget
from pipelines.maintenance.restore import empty_tables
from pipelines.maintenance.snapshots import expire_by_count
from pipelines.signals import process
from pipelines.signals.process import process_again
from tests.pipelines.conftest import Kept, SparkLake, kept
from tests.pipelines.makers import at, seq_at
from tests.pipelines.signal_makers import Door, readings


@pytest.fixture(scope="module")
def filled(new_spark_lake: Callable[[Path], SparkLake], tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A lake with two signals, one of them sent twice, and a status."""
    folder = tmp_path_factory.mktemp("signals")
    lake = new_spark_lake(folder / "home")
    made = Door(lake, folder / "ring")
    raw = [
        made.raw(1, "d", b"a", captured=1),
        made.raw(2, "d", b"a", captured=1),
        made.raw(3, "e", readings(("humidity", 4, "%"))),
    ]
    lake.write(Stream.XRAY_RAW, raw)
    lake.write(Stream.XRAY_STATUS, [made.status(4, "d", "online")])
    lake.ingest()
    return kept(lake)


@pytest.fixture
def spark_lake(filled: Kept) -> SparkLake:
    return filled.renewed()


def compared(spark_lake: SparkLake) -> list[tuple[str, str, int, int]]:
    found = check(spark_lake.catalog, spark_lake.settings, now=at(60_000)).findings
    return [(f.table, f.trouble, f.expected, f.found) for f in found]


def test_archive_and_tables_are_compared_and_repaired(spark_lake: SparkLake) -> None:
    assert compared(spark_lake) == []
    spark_lake.catalog.load_table(XRAY_PROCESSED.identifier).delete(where(EqualTo, "device_id", "e"))
    status = spark_lake.catalog.load_table(XRAY_STATUS.identifier)
    status.append(status.scan().to_arrow().cast(XRAY_STATUS.arrow_schema))
    assert compared(spark_lake) == [(XRAY_PROCESSED.name, "missing", 2, 1), (XRAY_STATUS.name, "doubled", 1, 2)]
    segments = Archive(spark_lake.settings.archive).segments()
    forget(spark_lake.catalog, spark_lake.settings, segments, now=at(60_000))
    assert all(spark_lake.rows(table) == [] for table in SIGNAL_TABLES)
    spark_lake.ingest("again")
    assert compared(spark_lake) == []
    assert spark_lake.rows(XRAY_PROCESSED, "seq") == [seq_at(1), seq_at(3)]


def test_days_past_their_retention_are_removed_and_not_missed(spark_lake: SparkLake) -> None:
    later = at(0) + timedelta(days=3)
    assert drop_signals(spark_lake.catalog, spark_lake.settings, now=later, dry_run=False).count == 0
    spark_lake.settings = spark_lake.settings.model_copy(update={"signals_retention_days": 2.0})
    assert drop_signals(spark_lake.catalog, spark_lake.settings, now=later, dry_run=True).count == 5
    assert len(spark_lake.rows(XRAY_RAW)) == 2
    assert drop_signals(spark_lake.catalog, spark_lake.settings, now=later, dry_run=False).count == 5
    assert all(spark_lake.rows(table) == [] for table in SIGNAL_TABLES)
    assert check(spark_lake.catalog, spark_lake.settings, now=later).agree
    assert drop_signals(spark_lake.catalog, spark_lake.settings, now=later, dry_run=False).count == 0


def test_the_lake_can_be_restored_and_its_history_expired(spark_lake: SparkLake) -> None:
    before = {table.name: spark_lake.rows(table) for table in (XRAY_RAW, XRAY_PROCESSED, XRAY_STATUS)}
    empty_tables(spark_lake.catalog, at(60_000))
    assert all(spark_lake.rows(table) == [] for table in SIGNAL_TABLES)
    spark_lake.ingest("again")
    assert {table.name: spark_lake.rows(table) for table in (XRAY_RAW, XRAY_PROCESSED, XRAY_STATUS)} == before
    assert expire_by_count(spark_lake.catalog, spark_lake.settings, now=at(0) + timedelta(days=9000))[XRAY_RAW.name] > 0
    shapes = compact(None, spark_lake.catalog, spark_lake.settings, now=at(60_000)).tables
    assert shapes[XRAY_RAW.name].before.files == 1


def test_signals_are_reprocessed_with_new_bounds_or_restored_keys(spark_lake: SparkLake, monkeypatch: pytest.MonkeyPatch) -> None:
    again = partial(process_again, spark_lake.catalog, now=at(60_000))
    before = spark_lake.rows(XRAY_PROCESSED)
    assert again(spark_lake.settings).days == []
    assert again(spark_lake.settings, again=True).rows == 2
    assert spark_lake.rows(XRAY_PROCESSED) == before

    dry = spark_lake.settings.model_copy(update={"signals_bounds": "humidity=10..100 %"})
    assert again(dry, start=at(0) + timedelta(days=1), again=True).days == []
    assert again(dry, again=True, end=at(0)).days == ["2026-03-01"]
    assert spark_lake.rows(XRAY_PROCESSED, "anomaly_types") == ["", "humidity_low"]

    with pytest.raises(SettingsError, match="cannot be read"):
        again(spark_lake.settings.model_copy(update={"signals_keys_file": "/none"}), again=True)
    other = spark_lake.settings.model_copy(update={"signals_keys_file": "", "signals_keys": SecretStr(new_key_line("other"))})
    assert again(other, again=True).unread == 2
    assert all("the key ring has no key" in problem for problem in spark_lake.rows(XRAY_PROCESSED, "problem"))
    assert again(spark_lake.settings).rows == 2
    assert spark_lake.rows(XRAY_PROCESSED) == before
    assert compared(spark_lake) == []

    monkeypatch.setattr(process, "RULES", 2)
    assert again(spark_lake.settings).days == ["2026-03-01"]


def test_reprocessing_is_published_although_main_was_rewritten(spark_lake: SparkLake, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_it = MaintenanceRun.publish

    def rewritten_first(self: MaintenanceRun, *arguments: Any) -> None:
        table = spark_lake.catalog.load_table(XRAY_PROCESSED.identifier)
        table.append(XRAY_PROCESSED.arrow_schema.empty_table())
        publish_it(self, *arguments)

    monkeypatch.setattr(MaintenanceRun, "publish", rewritten_first)
    dry = spark_lake.settings.model_copy(update={"signals_bounds": "humidity=10..100 %"})
    assert process_again(spark_lake.catalog, dry, now=at(60_000), again=True).rows == 2
    assert spark_lake.rows(XRAY_PROCESSED, "anomaly_types") == ["", "humidity_low"]
