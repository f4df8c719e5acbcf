"""Tables as the next release would define them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from manifold.contracts.tables import Table
from pipelines.migrations.of_tables import STEPS
from pipelines.migrations.steps import Step

NextRelease = Callable[..., None]


@contextmanager
def next_release() -> Iterator[NextRelease]:
    """Yield `define(table, step, **changes)`: within the block the table has one more step and version and these attributes."""
    before: list[tuple[Table, str, Any]] = []

    def define(table: Table, step: Step, **changed: Any) -> None:
        STEPS[table.name] = (*STEPS[table.name], step)
        for name, value in ({"version": table.version + 1} | changed).items():
            before.append((table, name, getattr(table, name)))
            object.__setattr__(table, name, value)  # definitions are frozen and shared by identity

    with patch.dict(STEPS):
        yield define
    for table, name, value in reversed(before):
        object.__setattr__(table, name, value)
