"""Field types shared by several models."""

from datetime import datetime
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from manifold.contracts.seq import MAX_SEQ

Seq = Annotated[int, Field(ge=0, le=MAX_SEQ, description="identity that the door gave the message; grows with time")]
Count = Annotated[int, Field(ge=0)]
Vin = Annotated[str, Field(description="the vehicle")]
RequestId = Annotated[str, Field(description="the request_id of the trigger")]
CampaignId = Annotated[str, Field(description="id of the campaign")]
DataId = Annotated[str, Field(description="the name of the data that the trigger refers to")]
AcceptedAt = Annotated[datetime, Field(description="when the recorder accepted the trigger")]
Model = TypeVar("Model", bound=BaseModel)


def example(**values: Any) -> ConfigDict:
    """Return a model configuration with this example for the OpenAPI document."""
    return ConfigDict(json_schema_extra={"example": values})


class MirrorModel(BaseModel):
    """Base of models that mirror a `history` type field by field."""

    @classmethod
    def of(cls: type[Model], source: object, **overrides: Any) -> Model:
        """Build the model without validation, from the attributes of `source` and from `overrides`, which replace them."""
        copied = {name: getattr(source, name) for name in cls.model_fields if name not in overrides}
        return cls.model_construct(**copied, **overrides)
