"""Numbers as JSON has them: of any length. Pure."""

import math
from typing import Any


def number(value: Any) -> float | None:
    """The value as a finite float; None: it is none."""
    if type(value) is float:
        return value if math.isfinite(value) else None
    if type(value) is not int:  # true is none
        return None
    try:
        return float(value)
    except OverflowError:
        return None
