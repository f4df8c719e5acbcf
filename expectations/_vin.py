"""The ISO 3779 rule as an SQL condition, for Spark and DuckDB.

As `manifold.contracts.names.is_iso_3779_vin`, without a Python worker for each row.
"""

# 49 CFR 565.15(c), table III: a character's value is the last digit of its place here, counted from 0; a dot stands for none.
PLACES = "0123456789.ABCDEFGH..JKLMN.P.R..STUVWXYZ"
WEIGHTS = (8, 7, 6, 5, 4, 3, 2, 10, 0, 9, 8, 7, 6, 5, 4, 3, 2)  # table IV; place 9 is the check digit itself
_WEIGHED = tuple((place, weight) for place, weight in enumerate(WEIGHTS, 1) if weight)


def iso_3779(column: str) -> str:
    """A condition that is true where `column` is a VIN with the right check digit in its ninth place."""
    shape = f"length({column}) = 17 AND NOT regexp_like({column}, '[^A-HJ-NPR-Z0-9]')"  # Java's $ would let a line break pass
    # Not by `translate` first: DuckDB would do it for each of the sixteen places, at 14 µs a VIN instead of 0.8.
    values = (f"{weight} * ((instr('{PLACES}', substr({column}, {place}, 1)) - 1) % 10)" for place, weight in _WEIGHED)
    return f"{shape} AND substr({column}, 9, 1) = substr('0123456789X', ({' + '.join(values)}) % 11 + 1, 1)"
