"""The kinds of rules, with their names in Great Expectations. The library is not imported, because this takes three seconds."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from manifold.contracts.answers import Answer
from manifold.contracts.campaigns import ORDERS
from manifold.contracts.envelope import Stream
from manifold.contracts.outcomes import Outcome
from manifold.contracts.tables import Severity

VOCABULARIES: dict[str, tuple[str, ...]] = {
    "$outcomes": tuple(Outcome),
    "$streams": tuple(Stream),
    "$orders": ORDERS,
    "$answers": tuple(Answer),
}

Columns = Annotated[tuple[str, ...], Field(min_length=1)]


class _Rule(BaseModel):
    """The fields of every rule."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    severity: Severity
    why: str = Field(min_length=10)


class _OnColumn(_Rule):
    """A rule about the values of one column."""

    column: str

    @property
    def columns(self) -> tuple[str, ...]:
        """This column."""
        return (self.column,)


class NotNull(_Rule):
    """No row has a null in any of these columns. Each column becomes an expectation."""

    type: Literal["expect_column_values_to_not_be_null"]
    columns: Columns
    name: str = "columns_are_present"

    def __str__(self) -> str:
        return f"{', '.join(self.columns)}: never null"


class Unique(_OnColumn):
    """No two rows that the run adds have the same value in this column."""

    type: Literal["expect_column_values_to_be_unique"]

    @property
    def name(self) -> str:
        """The rule's name in reports."""
        return f"{self.column}_is_unique"

    def __str__(self) -> str:
        return f"{self.column} once in what the run adds"


class UniqueTogether(_Rule):
    """No two rows that the run adds have the same values in all of these columns."""

    type: Literal["expect_compound_columns_to_be_unique"]
    columns: Annotated[tuple[str, ...], Field(min_length=2, alias="column_list")]

    @property
    def name(self) -> str:
        """The rule's name in reports."""
        return f"{'_'.join(self.columns)}_is_unique"

    def __str__(self) -> str:
        return f"({', '.join(self.columns)}) once in what the run adds"


class UniqueInTable(_Rule):
    """For each row that the run adds, only one row of the table `in_table` has its values in these columns: the row itself."""

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
    """The row's values in these columns exist in a row of the table `in_table`. Rows for which `unless` is true are ignored."""

    type: Literal["expect_values_to_exist_in_table"]
    columns: Columns
    in_table: str
    unless: str | None = None
    # A column of both tables. Only rows of `in_table` are read whose value is within the range of the values in the run.
    bounded_by: str | None = None

    @property
    def name(self) -> str:
        """The rule's name in reports."""
        return f"{'_'.join(self.columns)}_is_known"

    def __str__(self) -> str:
        exception = f", unless {self.unless}" if self.unless else ""
        return f"({', '.join(self.columns)}) exists in {self.in_table}{exception}"


class InSet(_OnColumn):
    """The value is in `value_set`: a list, a vocabulary of the contracts such as `$outcomes`, or the run's id (`$run_id`)."""

    type: Literal["expect_column_values_to_be_in_set"]
    name: str
    value_set: tuple[str, ...] | Literal["$outcomes", "$streams", "$orders", "$answers", "$run_id"]

    def __str__(self) -> str:
        values = self.value_set
        if isinstance(values, str):  # the name of a vocabulary, or `$run_id`, which stands for itself
            values = VOCABULARIES.get(values, (values,))
        return f"{self.column} is one of {', '.join(values)}"


class Between(_OnColumn):
    """The value lies between `min_value` and `max_value`, inclusive.

    `$epoch` is the earliest instant of a seq; `$latest` is the instant of the audit plus the tolerance of clocks.
    """

    type: Literal["expect_column_values_to_be_between"]
    name: str
    min_value: int | Literal["$epoch"]
    max_value: int | Literal["$latest"] | None = None

    def __str__(self) -> str:
        upper_bound = "" if self.max_value is None else f" and <= {self.max_value}"
        return f"{self.column} >= {self.min_value}{upper_bound}"


class Matches(_OnColumn):
    """The value contains a match of this Java regular expression."""

    type: Literal["expect_column_values_to_match_regex"]
    name: str
    regex: str

    def __str__(self) -> str:
        return f"{self.column} matches {self.regex}"


class NotLess(_Rule):
    """The value of `column_A` is not less than that of `column_B`."""

    type: Literal["expect_column_pair_values_a_to_be_greater_than_b"]
    name: str
    column_A: str  # noqa: N815  # the library's names
    column_B: str  # noqa: N815
    or_equal: Literal[True]

    def __str__(self) -> str:
        return f"{self.column_A} >= {self.column_B}"


class Holds(_Rule):
    """A Spark SQL condition over a single row is never false. As in an SQL CHECK, null counts as true."""

    type: Literal["expect_rows_to_hold"]
    name: str
    says: str  # the condition as a sentence
    sql: str
    shows: tuple[str, ...] = ()  # columns that a sample row shows in addition to the key

    def __str__(self) -> str:
        return f"{self.says}: {self.sql}"


AnyUnique = Unique | UniqueTogether | UniqueInTable
AnyRule = NotNull | AnyUnique | Known | InSet | Between | Matches | NotLess | Holds
Rule = Annotated[AnyRule, Field(discriminator="type")]


def columns_of(rule: AnyRule) -> tuple[str, ...]:
    """The columns that a rule names; for a condition (`Holds`), the columns that its sample rows show."""
    match rule:
        case Holds():
            return rule.shows
        case NotLess():
            return rule.column_A, rule.column_B
        case _:
            return rule.columns
