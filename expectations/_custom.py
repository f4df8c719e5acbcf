"""Custom expectations, each a native one on the boolean column of a rule (`expectations._rows.Case.flagged`)."""

from great_expectations.expectations import ExpectColumnValuesToBeInSet


class _ExpectFlag(ExpectColumnValuesToBeInSet):  # type: ignore[misc]  # the library is read without its types
    """The boolean column is true in every row."""

    value_set: list[bool] = [True]  # noqa: RUF012  # a field of the library's model


class ExpectRowsToHold(_ExpectFlag):
    """A condition over one row is never false."""


class ExpectKeyToBeUnique(_ExpectFlag):
    """A key occurs once in the rows that the run adds, or in a whole table."""


class ExpectValuesToExistInTable(_ExpectFlag):
    """The values of a row exist in a row of another table."""
