"""Rows removed by key in one snapshot, and again if main was rewritten meanwhile."""

import pyarrow as pa

from manifold.contracts.tables import OUTCOMES, SEGMENTS
from manifold.lake.catalog import open_catalog
from pipelines.ingest.branches import branch_of, create_branch, open_run
from pipelines.ingest.delete_rows import remove_rows
from pipelines.ingest.publish import finish_committed_runs, main_snapshots, publish
from pipelines.ingest.run import Ingested
from tests.pipelines.lakes import Lake
from tests.pipelines.makers import at, seq_at
from tests.pipelines.plain import PlainRun, compact, read, rows_of, without_spark


def ended(vin: str, ms: int) -> dict[str, object]:
    return {"vin": vin, "seq": seq_at(ms), "outcome": "delivered", "accepted_at": at(ms), "ended_at": at(ms)}


def test_rows_are_removed_by_all_columns_and_again_on_a_rewritten_main(lake: Lake) -> None:
    lake.renew()
    catalog = open_catalog(lake.settings)
    outcomes = [[ended("V1", 1), ended("V2", 1)], [ended("V1", 1)], [ended("V1", 2)], [ended("V2", 2)]]
    for rows in outcomes:
        catalog.load_table(OUTCOMES.identifier).append(rows_of(OUTCOMES, rows))
    run = PlainRun.on_main(without_spark(catalog, lake.settings, "run", at(0)))
    open_run(catalog, "run", run.base[SEGMENTS.name], at(0))
    run.create_branch(OUTCOMES)
    named = pa.table({"vin": ["V1", "V2"], "seq": [seq_at(1), seq_at(2)]})
    remove_rows(catalog, OUTCOMES, named, branch_of("run"), run.properties)
    run.record_snapshot(OUTCOMES)
    run.append_to_ledger(SEGMENTS.arrow_schema.empty_table(), Ingested("run"))
    compact(catalog, OUTCOMES)
    publish(catalog, "run")
    finish_committed_runs(catalog)
    assert sorted((row["vin"], row["seq"]) for row in read(catalog, OUTCOMES)) == [("V1", seq_at(2)), ("V2", seq_at(1))]


def test_a_commit_race_on_main_is_retried(lake: Lake) -> None:
    """Not a conflict to catalogs: another branch has grown. They still refuse it for its sequence number."""
    lake.renew()
    catalog = open_catalog(lake.settings)
    catalog.load_table(OUTCOMES.identifier).append(rows_of(OUTCOMES, [ended("V1", 1), ended("V2", 1)]))
    base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))
    open_run(catalog, "run", base[SEGMENTS.name], at(0))
    create_branch(catalog, OUTCOMES, "run", base[OUTCOMES.name])
    named = pa.table({"vin": ["V1"], "seq": [seq_at(1)]})
    player = lake.player(lambda own: remove_rows(own, OUTCOMES, named, branch_of("run"), {}), fine=True).go(0)
    assert player.steps == ["commit sdv.sdv_fanout_outcomes"]

    catalog.load_table(OUTCOMES.identifier).append(rows_of(OUTCOMES, [ended("V3", 1)]))
    player.go()

    loaded = catalog.load_table(OUTCOMES.identifier)
    left = loaded.scan(snapshot_id=loaded.refs()[branch_of("run")].snapshot_id).to_arrow()["vin"].to_pylist()
    assert left == ["V2"]
