"""Suites are data; the loader refuses ineffective ones."""

from pathlib import Path

import pytest

from expectations import Severity, Suite, load_suites
from expectations._rules import AnyUnique, Known, NotNull
from manifold.contracts.errors import Permanent
from manifold.contracts.tables import EVERY_TABLE
from tests.expectations.broken import FOUND

GOOD = """
table: quarantine
expectations:
  - {type: expect_column_values_to_be_unique, column: seq, severity: error, why: a message is refused once}
"""


def test_every_table_has_a_suite() -> None:
    assert set(load_suites()) == {table.name for table in EVERY_TABLE}


@pytest.mark.parametrize("suite", load_suites().values(), ids=lambda suite: suite.table)
def test_key_and_required_columns_are_rules_of_severity_error(suite: Suite) -> None:
    stops = [rule for rule in suite.rules if rule.severity is Severity.ERROR]
    unique = [set(rule.columns) for rule in stops if isinstance(rule, AnyUnique)]
    present = {column for rule in stops if isinstance(rule, NotNull) for column in rule.columns}

    assert any(columns <= set(suite.contract.key) for columns in unique)
    assert present == {column.name for column in suite.contract.columns if column.required}


def test_each_rule_has_rows_that_break_it() -> None:
    """The rows are audited in `test_audit.py`; a new rule needs rows in `broken.py`."""
    rules = {(suite.table, rule.name): rule.severity.value for suite in load_suites().values() for rule in suite.rules}

    assert {rule: severity for rule, (severity, _) in FOUND.items()} == rules


# Lookup tables that these suites need.
OF_ONE_MESSAGE = ("sdv_fanout_data", "sdv_fanout_meta", "ecq_index", "xray_processed_signals")


def test_no_rule_about_later_messages_stops_a_run() -> None:
    waiting = [
        rule
        for suite in load_suites().values()
        for rule in suite.rules
        if isinstance(rule, Known) and suite.table not in OF_ONE_MESSAGE
    ]

    assert waiting
    assert {rule.severity for rule in waiting} == {Severity.WARNING}


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        pytest.param("column: seq", "column: sequence", "quarantine has no column sequence", id="a missing column"),
        pytest.param("severity: error", "severity: fatal", "severity", id="an unknown severity"),
        pytest.param("why: a message is refused once", "why: ''", "why", id="no reason"),
        pytest.param("to_be_unique", "to_be_uniqe", "expectations.0", id="an unknown expectation"),
        pytest.param(
            "type: expect_column_values_to_be_unique, column: seq",
            "type: expect_column_values_to_match_regex, name: r, column: topic, regex: '^a$'",
            "rule r: $ also matches before a last line feed",
            id="a pattern that matches before a final newline",
        ),
        pytest.param(
            "table: quarantine", "table: quarantines", "not a table of manifold.contracts.tables", id="an unknown table"
        ),
        pytest.param("table: quarantine", "table: sdv_fanout_ids", "rename it to sdv_fanout_ids.yaml", id="another table's name"),
    ],
)
def test_an_ineffective_suite_is_refused_with_file_and_fault(tmp_path: Path, before: str, after: str, says: str) -> None:
    (tmp_path / "quarantine.yaml").write_text(GOOD.replace(before, after))

    with pytest.raises(Permanent, match=r"quarantine\.yaml") as refused:
        load_suites(tmp_path)
    assert says in str(refused.value)


def test_duplicate_rule_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "quarantine.yaml").write_text(GOOD + GOOD.splitlines()[-1] + "\n")

    with pytest.raises(Permanent, match="two rules are named seq_is_unique"):
        load_suites(tmp_path)
