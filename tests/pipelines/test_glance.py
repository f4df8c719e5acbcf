"""A glance reads what Spark has written as PyIceberg does, compacted or not, and leaves delete files to PyIceberg."""

import pytest

from adapters.glance import NotHere, batch_of, entries_of, segments_since
from adapters.lake import ensure_tables, read_batch, read_entries, read_segments
from contracts.envelope import Stream
from contracts.tables import IDS
from pipelines.upkeep.compact import compact
from tests.pipelines.conftest import Place
from tests.pipelines.makers import at, outcome, trigger

DAYS_MS = 5 * 86_400_000


@pytest.mark.slow
def test_a_glance_at_what_spark_wrote_gives_what_pyiceberg_gives(place: Place) -> None:
    ensure_tables(place.catalog)
    place.write(Stream.TRIGGER, [trigger(n, ["V1", "V2"], request_id="task_twice") for n in range(2)])
    place.write(Stream.OUTCOME, [outcome(5, "V1", 0), outcome(6, "V1", 0)])
    place.ingest("one")
    place.write(Stream.TRIGGER, [trigger(DAYS_MS, ["V2"])])
    place.ingest("two")

    def same() -> None:
        assert entries_of(place.settings, "V1") == read_entries(place.catalog, "V1")
        assert batch_of(place.settings, "task_twice") == read_batch(place.catalog, "task_twice")
        assert segments_since(place.settings, at(0)) == read_segments(place.catalog, at(0))

    same()
    states = [life.state for life in batch_of(place.settings, "task_twice")]
    compact(place.spark, place.catalog, place.settings.model_copy(update={"compact_min_files": 2}), now=at(DAYS_MS))
    same()
    name = f"{place.settings.catalog_name}.{IDS.identifier}"
    place.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    place.spark.sql(f"DELETE FROM {name} WHERE vin = 'V2' AND request_id = 'task_twice' AND seq < {trigger(1, []).seq}")

    assert states == ["delivered", "pending", "pending", "pending"]
    with pytest.raises(NotHere, match="files of their own"):
        entries_of(place.settings, "V2")
