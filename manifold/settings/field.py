"""Building blocks of settings: types, and a field with its meaning as printed by `manifold settings`."""

from typing import Annotated, Any

from pydantic import Field

from manifold.contracts.seq import MAX_NODE

MAX_DAYS = 36_500  # a century: far more is beyond every calendar

Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=MAX_DAYS * 86_400)]
SecondsOrNone = Annotated[float, Field(ge=0, le=MAX_DAYS * 86_400)]
Days = Annotated[float, Field(gt=0, le=MAX_DAYS)]
DaysOrNone = Annotated[float, Field(ge=0, le=MAX_DAYS)]
Positive = Annotated[int, Field(gt=0)]
NodeNumber = Annotated[int, Field(ge=0, le=MAX_NODE)]


def setting(default: Any, meaning: str) -> Any:
    """Return a field with default and description."""
    return Field(default=default, description=meaning)
