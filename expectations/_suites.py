"""Loads the suites of rules, one YAML file per table, and refuses unknown fields and columns."""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML

from expectations._rules import AnyRule, Known, Matches, Rule, UniqueInTable, columns_of
from manifold.contracts.errors import Permanent
from manifold.contracts.tables import CAMPAIGN_LIST, EVERY_TABLE, Table

# These are not paths, because on a cluster the code may be in an archive.
FOLDER = files("expectations") / "suites"
LISTS = files("expectations") / "lists"  # suites for rows that are not in a table, such as a campaign's list


class Suite(BaseModel):
    """The rules of one table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    table: str
    expectations: Annotated[tuple[Rule, ...], Field(min_length=1)]

    @property
    def rules(self) -> tuple[AnyRule, ...]:
        """The rules of the suite; `expectations` is their name in the YAML file."""
        return self.expectations

    @property
    def contract(self) -> Table:
        """The table's definition in the contracts."""
        return next(table for table in (*EVERY_TABLE, CAMPAIGN_LIST) if table.name == self.table)

    @property
    def references(self) -> set[str]:
        """Names of the tables in which rules of the suite look up values."""
        return {rule.in_table for rule in self.rules if isinstance(rule, UniqueInTable | Known)}


@cache
def load_suites(folder: Traversable = FOLDER) -> dict[str, Suite]:
    """Load every suite in `folder`; return them by table name.

    Raises:
        Permanent: a file is not a valid suite. The message names the file, the field and the remedy.
    """
    return {suite.table: suite for suite in map(_load, _yaml_files(folder))}


@cache
def load_list_suites() -> dict[str, Suite]:
    """Load the suites of lists; return them by the name of the list.

    Raises:
        Permanent: as in `load_suites`.
    """
    return {suite.table: suite for suite in map(_load, _yaml_files(LISTS))}


def _yaml_files(folder: Traversable) -> list[Traversable]:
    return sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)


def _load(path: Traversable) -> Suite:
    """Load the suite in a YAML file; raises `Permanent` if it is not valid."""
    try:
        suite = Suite.model_validate(YAML(typ="safe").load(path.read_text()))
    except ValidationError as exc:
        first_error = exc.errors()[0]
        field = ".".join(map(str, first_error["loc"]))
        raise Permanent(f"{path.name}: {field}: {first_error['msg']}; see the rules in the other suites") from exc
    first_problem = next(_problems(suite, path), None)
    if first_problem is not None:
        raise Permanent(f"{path.name}: {first_problem}")
    return suite


def _problems(suite: Suite, path: Traversable) -> Iterator[str]:
    """Yield the problems of a suite that its data model does not find, such as a wrong file name or an unknown column."""
    columns_by_table = {table.name: {column.name for column in table.columns} for table in (*EVERY_TABLE, CAMPAIGN_LIST)}
    if suite.table not in columns_by_table:
        yield f"{suite.table} is not a table of manifold.contracts.tables; name one of {', '.join(columns_by_table)}"
        return  # the columns of its rules cannot be checked
    if path.name != f"{suite.table}.yaml":
        yield f"a suite's file is named after its table; rename it to {suite.table}.yaml"
    names = [rule.name for rule in suite.rules]
    for name in names:
        if names.count(name) > 1:
            yield f"two rules are named {name}; give one another name"
    for rule in suite.rules:
        if isinstance(rule, Matches) and "$" in rule.regex:
            yield f"rule {rule.name}: $ also matches before a last line feed; write \\z"
        rule_tables = [suite.table]  # the tables that must have the rule's columns
        if isinstance(rule, UniqueInTable | Known):
            rule_tables.append(rule.in_table)
        for column in columns_of(rule):
            for table in rule_tables:
                if table not in columns_by_table or column not in columns_by_table[table]:
                    yield f"rule {rule.name}: {table} has no column {column}"
