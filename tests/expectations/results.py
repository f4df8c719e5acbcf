"""Rows of `quality_results`, as audits leave them."""

from datetime import timedelta
from typing import Any

from tests.expectations.rows import NOON

Row = dict[str, Any]


def result(run: int, rule: str = "seq_is_unique", unexpected: Any = 0, **changed: Any) -> Row:
    """How the `run`th run, hours after noon, kept one rule of the quarantine's."""
    row = {"run_id": f"run{run}", "suite": "quarantine", "rule": rule, "severity": "error", "judged": 200, "sample": None}
    row |= {"outcome": "broken" if unexpected else "passed", "unexpected": unexpected, "at": NOON + timedelta(hours=run)}
    return row | changed
