"""Numbers as JSON has them: of any length. Pure."""

import math
from typing import Any


def number(value: Any) -> float | None:
    """The value as a finite float; None: it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None
