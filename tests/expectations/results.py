"""Rows of `quality_results`, as audits write them."""

from datetime import timedelta
from typing import Any

from tests.expectations.rows import NOON

Row = dict[str, Any]


def result(run: int, rule: str = "seq_is_unique", unexpected: Any = 0, **changed: Any) -> Row:
    """The result of one quarantine rule in run number `run`, that many hours after noon."""
    row = {"run_id": f"run{run}", "suite": "quarantine", "rule": rule, "severity": "error", "judged": 200, "sample": None}
    row |= {"outcome": "broken" if unexpected else "passed", "unexpected": unexpected, "at": NOON + timedelta(hours=run)}
    return row | changed
