"""What the models of all answers share."""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from contracts.seq import MAX_SEQ

Seq = Annotated[int, Field(ge=0, le=MAX_SEQ, description="identity that the recorder gave at the door; grows with time")]
Count = Annotated[int, Field(ge=0)]
Model = TypeVar("Model", bound=BaseModel)


def taken_over(model: type[Model], known: object, **other: Any) -> Model:
    """The model with what is known under the names of its fields, or with `other`. Nothing is checked again."""
    return model.model_construct(**{name: getattr(known, name) for name in model.model_fields.keys() - other.keys()}, **other)


def example(**values: Any) -> ConfigDict:
    """The configuration of a model whose example in the OpenAPI document has these values."""
    return ConfigDict(json_schema_extra={"example": values})
