"""Building blocks of settings: types, and a field with its meaning as printed by `manifold settings`."""

from typing import Annotated, Any

from pydantic import Field

from manifold.contracts.seq import MAX_NODE

Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0)]
Positive = Annotated[int, Field(gt=0)]
NodeNumber = Annotated[int, Field(ge=0, le=MAX_NODE)]


def setting(default: Any, meaning: str) -> Any:
    """Return a field with default and description."""
    return Field(default=default, description=meaning)
