"""Commits to a real SQLite catalog: an append does not copy the metadata on each access."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyiceberg.catalog
import pyiceberg.table
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Transaction

from manifold.contracts.tables import SEGMENTS
from manifold.lake import compat
from manifold.lake.commits import append_rows
from manifold.lake.compat import Change

COPYING = (pyiceberg.catalog, pyiceberg.table, compat)


def rows() -> pa.Table:
    return pa.Table.from_pylist(
        [{"path": "p", "stream": "trigger", "messages": 1, "first_seq": 1, "last_seq": 1, "run_id": "r"}],
        schema=pa.schema(
            [SEGMENTS.arrow_schema.field(n) for n in ("path", "stream", "messages", "first_seq", "last_seq", "run_id")]
        ),
    )


def complete(some: pa.Table) -> pa.Table:
    columns = {c.name: some[c.name] if c.name in some.column_names else pa.nulls(some.num_rows) for c in SEGMENTS.columns}
    instants = {
        name: pa.array([0] * some.num_rows, SEGMENTS.arrow_schema.field(name).type) for name in ("ingested_at", "began_at")
    }
    return pa.table(columns | instants).cast(SEGMENTS.arrow_schema)


def test_an_append_copies_the_metadata_only_a_few_times(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[str] = []

    def counting(real: Callable[..., Any], where: str) -> Callable[..., Any]:
        def made(*arguments: Any, **named: Any) -> Any:
            copies.append(where)
            return real(*arguments, **named)

        return made

    for module in COPYING:
        monkeypatch.setattr(module, "update_table_metadata", counting(module.update_table_metadata, module.__name__))
    catalog.load_table(SEGMENTS.identifier).append(complete(rows()))
    by_the_library = len(copies)
    copies.clear()

    append_rows(catalog, SEGMENTS, complete(rows()), {})

    assert len(copies) < by_the_library / 4
    assert catalog.load_table(SEGMENTS.identifier).scan().to_arrow().num_rows == 2


def test_staged_changes_are_visible_and_the_base_is_unchanged(catalog: Catalog) -> None:
    table = catalog.load_table(SEGMENTS.identifier)
    before = table.metadata.model_copy(deep=True)
    change = Change(table)
    assert change.table_metadata is table.metadata
    for number in range(3):
        change.set_properties({f"manifold.n{number}": "x"})
        change.append(complete(rows()))
        seen, theirs = change.table_metadata, Transaction.table_metadata.fget(change)  # type: ignore[attr-defined]
        assert seen.model_copy(update={"last_updated_ms": 0}) == theirs.model_copy(update={"last_updated_ms": 0})
        assert change.table_metadata is seen
        assert table.metadata == before
    change.commit_transaction()
    assert catalog.load_table(SEGMENTS.identifier).scan().to_arrow().num_rows == 3
    assert change.table_metadata == table.metadata
