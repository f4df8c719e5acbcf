"""JSON numbers of any size. Pure."""

import math
from typing import Any


def number(value: Any) -> float | None:
    """Return the value as a finite float; None if it is not a number or not finite."""
    if type(value) is float:
        return value if math.isfinite(value) else None
    if type(value) is not int:  # excludes bool
        return None
    try:
        return float(value)
    except OverflowError:
        return None
