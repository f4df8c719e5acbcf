"""The suites as data: one YAML file a table in the words of Great Expectations, one loader that refuses what it does not know.

Great Expectations itself is not needed to read them, and takes three seconds to import.
"""

from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML

from contracts.envelope import Stream
from contracts.errors import Permanent
from contracts.outcomes import Outcome
from contracts.tables import TABLES, Table
from expectations._vin import iso_3779

FOLDER = files("expectations") / "suites"  # not by a path: on a cluster the code may be in an archive
VOCABULARIES: dict[str, tuple[str, ...]] = {"$outcomes": tuple(Outcome), "$streams": tuple(Stream)}
# What ingest counts of the rows of a table that it has written, and the condition whose breaking it counts. A rule with any
# other is judged by the rows alone.
COUNTED: dict[str, tuple[str, str]] = {"odd_vins": ("sdv_fanout_ids", iso_3779("vin"))}

Columns = Annotated[tuple[str, ...], Field(min_length=1)]


class Severity(StrEnum):
    """What a broken rule means for the run."""

    ERROR = "error"  # published, these rows would break a promise of the table: the run is not published
    WARNING = "warning"  # somebody should look; holding back good rows for it would be worse


class _Rule(BaseModel):
    """What every rule says of itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    severity: Severity
    why: str = Field(min_length=10)
    counted: str | None = None  # under which name of `COUNTED` ingest may hand over how many rows break it


class NotNull(_Rule):
    """No row lacks any of these columns; one expectation a column."""

    type: Literal["expect_column_values_to_not_be_null"]
    columns: Columns
    name: str = "columns_are_present"

    def __str__(self) -> str:
        return f"{', '.join(self.columns)}: never null"


class Unique(_Rule):
    """No two rows that the run adds have the same value here."""

    type: Literal["expect_column_values_to_be_unique"]
    column: str

    @property
    def columns(self) -> tuple[str, ...]:
        """What is unique."""
        return (self.column,)

    @property
    def name(self) -> str:
        """The rule's name in reports."""
        return f"{self.column}_is_unique"

    def __str__(self) -> str:
        return f"{self.column} once in what the run adds"


class UniqueTogether(_Rule):
    """No two rows that the run adds have the same values here."""

    type: Literal["expect_compound_columns_to_be_unique"]
    column_list: Annotated[tuple[str, ...], Field(min_length=2)]

    @property
    def columns(self) -> tuple[str, ...]:
        """What is unique."""
        return self.column_list

    @property
    def name(self) -> str:
        """The rule's name in reports."""
        return f"{'_'.join(self.columns)}_is_unique"

    def __str__(self) -> str:
        return f"({', '.join(self.columns)}) once in what the run adds"


class UniqueInTable(_Rule):
    """No two rows of the whole `in_table` have the same values here as a row that the run adds."""

    type: Literal["expect_values_to_be_unique_in_table"]
    columns: Columns
    in_table: str

    @property
    def name(self) -> str:
        """The rule's name in reports."""
        return f"{'_'.join(self.columns)}_is_unique"

    def __str__(self) -> str:
        return f"({', '.join(self.columns)}) once in {self.in_table}"


class Known(_Rule):
    """The values stand in `in_table` too; rows for which `unless` is true are left out."""

    type: Literal["expect_values_to_stand_in_table"]
    columns: Columns
    in_table: str
    unless: str | None = None
    bounded_by: str | None = (
        None  # a column of both: only the rows of `in_table` between the run's least and greatest value are read
    )

    @property
    def name(self) -> str:
        """The rule's name in reports."""
        return f"{'_'.join(self.columns)}_is_known"

    def __str__(self) -> str:
        return f"({', '.join(self.columns)}) stands in {self.in_table}" + (f", unless {self.unless}" if self.unless else "")


class InSet(_Rule):
    """The value is one of these; `$outcomes` and `$streams` are the words of the contracts, `$run_id` is the run's own."""

    type: Literal["expect_column_values_to_be_in_set"]
    name: str
    column: str
    value_set: tuple[str, ...] | Literal["$outcomes", "$streams", "$run_id"]

    def __str__(self) -> str:
        words = VOCABULARIES.get(self.value_set) if isinstance(self.value_set, str) else self.value_set
        return f"{self.column} is one of {', '.join(words or (str(self.value_set),))}"


class Between(_Rule):
    """The value is not smaller and not greater than these; `$epoch` is the first instant of a seq, `$latest` the present one."""

    type: Literal["expect_column_values_to_be_between"]
    name: str
    column: str
    min_value: int | Literal["$epoch"]
    max_value: int | Literal["$latest"] | None = None

    def __str__(self) -> str:
        return f"{self.column} >= {self.min_value}" + (f" and <= {self.max_value}" if self.max_value is not None else "")


class Matches(_Rule):
    """This regular expression of Java is found in the value."""

    type: Literal["expect_column_values_to_match_regex"]
    name: str
    column: str
    regex: str

    def __str__(self) -> str:
        return f"{self.column} matches {self.regex}"


class NotLess(_Rule):
    """One column's value is not smaller than the other's."""

    type: Literal["expect_column_pair_values_a_to_be_greater_than_b"]
    name: str
    column_A: str  # noqa: N815  # the library's names
    column_B: str  # noqa: N815
    or_equal: Literal[True]

    def __str__(self) -> str:
        return f"{self.column_A} >= {self.column_B}"


class Iso3779(_Rule):
    """The column holds a VIN by ISO 3779 with its check digit, as `contracts.names.is_iso_3779_vin` says."""

    type: Literal["expect_vins_to_be_iso3779"]
    column: str

    @property
    def name(self) -> str:
        """The rule's name in reports."""
        return f"{self.column}_is_iso_3779"

    def __str__(self) -> str:
        return f"{self.column} is a VIN by ISO 3779 with its check digit"


class Holds(_Rule):
    """A Spark SQL condition over one row that is never false; like SQL's CHECK, null counts as true."""

    type: Literal["expect_rows_to_hold"]
    name: str
    says: str  # the condition as a sentence
    sql: str
    shows: tuple[str, ...] = ()  # columns that a sample row shows besides the key

    def __str__(self) -> str:
        return f"{self.says}: {self.sql}"


AnyUnique = Unique | UniqueTogether | UniqueInTable
AnyRule = NotNull | AnyUnique | Known | InSet | Between | Matches | NotLess | Iso3779 | Holds
Rule = Annotated[AnyRule, Field(discriminator="type")]


class Suite(BaseModel):
    """The rules of one table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    table: str
    expectations: Annotated[tuple[Rule, ...], Field(min_length=1)]

    @property
    def rules(self) -> tuple[AnyRule, ...]:
        """The expectations, as the project calls them: each has a name, a severity and a reason."""
        return self.expectations

    @property
    def contract(self) -> Table:
        """The table as the contracts define it."""
        return next(table for table in TABLES if table.name == self.table)

    @property
    def references(self) -> set[str]:
        """Tables in which rules look values up."""
        return {rule.in_table for rule in self.rules if isinstance(rule, UniqueInTable | Known)}


@cache
def load_suites(folder: Traversable = FOLDER) -> dict[str, Suite]:
    """Every suite in `folder`, by table.

    Raises:
        Permanent: a file is not a suite; the message names file, field and remedy.
    """
    return {suite.table: suite for suite in map(_load, _files(folder))}


def _files(folder: Traversable) -> list[Traversable]:
    return sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)


def _load(path: Traversable) -> Suite:
    try:
        suite = Suite.model_validate(YAML(typ="safe").load(path.read_text()))
    except ValidationError as exc:
        first = exc.errors()[0]
        raise Permanent(
            f"{path.name}: {'.'.join(map(str, first['loc']))}: {first['msg']}; see the rules in the other suites"
        ) from exc
    for problem in _problems(suite, path):
        raise Permanent(f"{path.name}: {problem}")
    return suite


def _problems(suite: Suite, path: Traversable) -> Iterator[str]:
    tables = {table.name: {column.name for column in table.columns} for table in TABLES}
    if suite.table not in tables:
        yield f"{suite.table} is no table of contracts.tables; name one of {', '.join(tables)}"
        return
    if path.name != f"{suite.table}.yaml":
        yield f"a suite's file is named after its table; rename it to {suite.table}.yaml"
    names = [rule.name for rule in suite.rules]
    for name in names:
        if names.count(name) > 1:
            yield f"two rules are named {name}; give one another name"
    for rule in suite.rules:
        asked = iso_3779(rule.column) if isinstance(rule, Iso3779) else None
        if rule.counted is not None and COUNTED.get(rule.counted) != (suite.table, asked):
            yield f"rule {rule.name}: {rule.counted} counts no rows by this condition; leave out counted, and the rows are asked"
        other = rule.in_table if isinstance(rule, UniqueInTable | Known) else None
        for column in columns_of(rule):
            for table in filter(None, (suite.table, other)):
                if column not in tables.get(table, set()):
                    yield f"rule {rule.name}: {table} has no column {column}"


def columns_of(rule: AnyRule) -> tuple[str, ...]:
    """The columns that a rule names; of a condition, those that its sample rows show."""
    match rule:
        case Holds():
            return rule.shows
        case NotLess():
            return rule.column_A, rule.column_B
        case InSet() | Between() | Matches() | Iso3779():
            return (rule.column,)
        case _:
            return rule.columns
