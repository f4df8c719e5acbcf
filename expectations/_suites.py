"""The suites as data: one YAML file a table, one loader that refuses what it does not understand."""

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

FOLDER = files("expectations") / "suites"  # not by a path: on a cluster the code may be in an archive
VOCABULARIES: dict[str, type[StrEnum]] = {"Outcome": Outcome, "Stream": Stream}

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


class Present(_Rule):
    """No row lacks any of these columns."""

    rule: Literal["present"]
    columns: Columns

    @property
    def name(self) -> str:
        """The rule's name in reports."""
        return "columns_are_present"

    def __str__(self) -> str:
        return f"{', '.join(self.columns)}: never null"


class Unique(_Rule):
    """No two rows have the same values here: of those that the run adds, or of the whole table `among`."""

    rule: Literal["unique"]
    columns: Columns
    among: str | None = None

    @property
    def name(self) -> str:
        """The rule's name in reports."""
        return f"{'_'.join(self.columns)}_is_unique"

    def __str__(self) -> str:
        return f"({', '.join(self.columns)}) once in {self.among or 'what the run adds'}"


class Known(_Rule):
    """The values stand in the table `among` too; rows for which `unless` is true are left out."""

    rule: Literal["known"]
    columns: Columns
    among: str
    unless: str | None = None
    bounded_by: str | None = (
        None  # a column of both: only the rows of `among` between the run's least and greatest value are read
    )

    @property
    def name(self) -> str:
        """The rule's name in reports."""
        return f"{'_'.join(self.columns)}_is_known"

    def __str__(self) -> str:
        return f"({', '.join(self.columns)}) stands in {self.among}" + (f", unless {self.unless}" if self.unless else "")


class OneOf(_Rule):
    """The value is one of the wire values of an enum of the contracts."""

    rule: Literal["one_of"]
    column: str
    vocabulary: Literal["Outcome", "Stream"]

    @property
    def name(self) -> str:
        """The rule's name in reports."""
        return f"{self.column}_is_a_known_word"

    @property
    def words(self) -> list[str]:
        """The values that are allowed."""
        return [word.value for word in VOCABULARIES[self.vocabulary]]

    def __str__(self) -> str:
        return f"{self.column} is one of {', '.join(self.words)}"


class Iso3779(_Rule):
    """The column holds a VIN by ISO 3779 with its check digit, as `contracts.names.is_iso_3779_vin` says."""

    rule: Literal["iso_3779"]
    column: str

    @property
    def name(self) -> str:
        """The rule's name in reports."""
        return f"{self.column}_is_iso_3779"

    def __str__(self) -> str:
        return f"{self.column} is a VIN by ISO 3779 with its check digit"


class Holds(_Rule):
    """A Spark SQL condition over one row that is never false; like SQL's CHECK, null counts as true."""

    rule: Literal["holds"]
    name: str
    sql: str
    shows: tuple[str, ...] = ()  # columns that a sample row shows besides the key

    def __str__(self) -> str:
        return self.sql


Rule = Annotated[Present | Unique | Known | OneOf | Iso3779 | Holds, Field(discriminator="rule")]


class Suite(BaseModel):
    """The rules of one table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    table: str
    rules: Annotated[tuple[Rule, ...], Field(min_length=1)]

    @property
    def contract(self) -> Table:
        """The table as the contracts define it."""
        return next(table for table in TABLES if table.name == self.table)

    @property
    def references(self) -> set[str]:
        """Tables in which rules look values up."""
        return {rule.among for rule in self.rules if isinstance(rule, Unique | Known) and rule.among is not None}


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
        among = rule.among if isinstance(rule, Unique | Known) else None
        for column in columns_of(rule):
            for table in filter(None, (suite.table, among)):
                if column not in tables.get(table, set()):
                    yield f"rule {rule.name}: {table} has no column {column}"


def columns_of(rule: Present | Unique | Known | OneOf | Iso3779 | Holds) -> tuple[str, ...]:
    """The columns that a rule names; of a condition, those that its sample rows show."""
    match rule:
        case Present() | Unique() | Known():
            return rule.columns
        case OneOf() | Iso3779():
            return (rule.column,)
        case Holds():
            return rule.shows
