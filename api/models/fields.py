"""What the models of all answers share."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from contracts.seq import MAX_SEQ

Seq = Annotated[int, Field(ge=0, le=MAX_SEQ, description="identity that the recorder gave at the door; grows with time")]
Count = Annotated[int, Field(ge=0)]


def example(**values: Any) -> ConfigDict:
    """The configuration of a model whose example in the OpenAPI document has these values."""
    return ConfigDict(json_schema_extra={"example": values})
