"""The table of `manifold gc`."""

from dataclasses import fields

from manifold.console._housekeeping import removal_rows
from pipelines.maintenance.garbage import Collected
from pipelines.maintenance.garbage_run import Removal


def test_the_table_counts_every_kind_of_removal() -> None:
    by_table = {"snapshots", "orphans"}
    kinds = [field.name for field in fields(Collected) if field.name not in {"dry_run", *by_table}]
    removals = {kind: Removal(count=1 << number) for number, kind in enumerate(kinds)}  # each sum of them is another number
    of_tables = {kind: {"one": Removal(count=1 << (20 + number))} for number, kind in enumerate(sorted(by_table))}

    rows = removal_rows(Collected(dry_run=False, **removals, **of_tables))  # type: ignore[arg-type]  # keywords of two types

    assert sum(int(str(row[1])) for row in rows) == (1 << len(kinds)) - 1 + (3 << 20)
