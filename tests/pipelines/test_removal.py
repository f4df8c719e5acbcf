"""Rows removed by name, in one snapshot, and once more where main was rewritten meanwhile."""

import pyarrow as pa

from adapters.lake import open_catalog
from contracts.tables import OUTCOMES, SEGMENTS
from pipelines.ingest.branches import branch_of, create_branch, open_run
from pipelines.ingest.publish import finish, main_snapshots, publish
from pipelines.ingest.removal import remove_rows
from pipelines.ingest.run import Ingested
from tests.pipelines.lakes import Lake
from tests.pipelines.makers import at, seq_at
from tests.pipelines.plain import PlainRun, compact, read, rows_of


def ended(vin: str, ms: int) -> dict[str, object]:
    return {"vin": vin, "seq": seq_at(ms), "outcome": "delivered", "accepted_at": at(ms), "ended_at": at(ms)}


def test_rows_go_by_all_of_their_columns_and_again_on_a_main_that_was_rewritten(lake: Lake) -> None:
    lake.renew()
    catalog = open_catalog(lake.settings)
    outcomes = [[ended("V1", 1), ended("V2", 1)], [ended("V1", 1)], [ended("V1", 2)], [ended("V2", 2)]]
    for rows in outcomes:
        catalog.load_table(OUTCOMES.identifier).append(rows_of(OUTCOMES, rows))
    base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))
    run = PlainRun(catalog, lake.settings, "run", at(0))
    open_run(catalog, "run", base[SEGMENTS.name], at(0))
    create_branch(catalog, OUTCOMES, "run", base[OUTCOMES.name])
    named = pa.table({"vin": ["V1", "V2"], "seq": [seq_at(1), seq_at(2)]})
    remove_rows(catalog.load_table(OUTCOMES.identifier), branch_of("run"), named, run.properties)
    run.note(OUTCOMES, base[OUTCOMES.name])
    run.close(SEGMENTS.arrow_schema.empty_table(), Ingested("run"), base[SEGMENTS.name])
    compact(catalog, OUTCOMES)
    publish(catalog, "run")
    finish(catalog)
    assert sorted((row["vin"], row["seq"]) for row in read(catalog, OUTCOMES)) == [("V1", seq_at(2)), ("V2", seq_at(1))]
