"""The ISO 3779 rule as an SQL condition, for Spark and DuckDB.

As `contracts.names.is_iso_3779_vin`, without a Python worker for each row.
"""

LETTERS, VALUES = "ABCDEFGHJKLMNPRSTUVWXYZ", "12345678123457923456789"  # 49 CFR 565.15(c), table III
WEIGHTS = (8, 7, 6, 5, 4, 3, 2, 10, 0, 9, 8, 7, 6, 5, 4, 3, 2)  # table IV; place 9 is the check digit itself


def iso_3779(column: str) -> str:
    """A condition that is true where `column` is a VIN with the right check digit in its ninth place."""
    shape = f"length({column}) = 17 AND NOT regexp_like({column}, '[^A-HJ-NPR-Z0-9]')"  # Java's $ would let a line break pass
    # try_cast: Spark may look at the sum before the shape, and ANSI mode would end the job at the first "-".
    digits = f"translate({column}, '{LETTERS}', '{VALUES}')"
    total = " + ".join(
        f"{weight} * try_cast(substr({digits}, {place}, 1) AS INT)" for place, weight in enumerate(WEIGHTS, 1) if weight
    )
    return f"{shape} AND substr({column}, 9, 1) = substr('0123456789X', ({total}) % 11 + 1, 1)"
