"""Bodies of orders to campaigns, and response models of campaigns."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from manifold.api.models.fields import Count, Seq, example

PLAN = {
    "campaign": "eu-map-47",
    "data_id": "map_eu_47",
    "targets": {"vins": ["1M8GDM9AXKP042788"]},
    "ends": "2026-12-20T00:00:00Z",
}
ORDERED = {
    "campaign": "eu-map-47",
    "do": "pause",
    "by": "anna",
    "seq": 911974771715997696,
    "token": "9f86d081884c7d659a2feaa0c55ad015",
    "effect": None,
}
MAX_WHY = 1000  # characters
Campaign = Annotated[str, Field(description="id of the campaign")]
Version = Annotated[int, Field(ge=0, description="number of orders that had an effect; the `ETag`")]


class Order(BaseModel):
    """What every order may say."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"why": "the canary is good"}})

    why: str = Field(default="", max_length=MAX_WHY, description="why; it is kept on record")
    token: str | None = Field(
        default=None,
        pattern="^[0-9a-f]{32}$",
        description="random, of the client: a repeated order with the same token has an effect once; null: one is made",
    )


class Approve(Order):
    """Approval of a plan, or of a gate."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"wave": 0, "why": "the canary is good"}})

    wave: int | None = Field(
        default=None, ge=0, le=10_000, description="place of the wave whose gate is approved; null: the plan"
    )


class Pass(Order):
    """Override of a gate."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"wave": 0, "why": "the others are in garages"}})

    wave: int = Field(ge=0, le=10_000, description="place of the open wave, whose gate is passed")
    why: str = Field(min_length=1, max_length=MAX_WHY, description="why; it is kept on record")


class Resume(Order):
    """End of a pause."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"accept": ["r1"], "why": "a known fault"}})

    accept: list[str] = Field(default_factory=list, max_length=1000, description="the rules that tripped, by name")


class Retry(Order):
    """Another try for targets that have ended."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"ended": ["failed", "expired"]}})

    ended: list[str] = Field(default_factory=lambda: ["failed"], min_length=1, max_length=10, description="how they had ended")


class Plan(Order):
    """A plan that is proposed, or that replaces another."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"plan": PLAN, "why": "new maps"}})

    plan: dict[str, Any] = Field(description="the document, as the guide of campaigns says")


class Ordered(BaseModel):
    """An order that is on disk."""

    model_config = example(**ORDERED)

    campaign: Campaign
    do: str = Field(description="the order")
    by: str = Field(description="whose token was shown")
    seq: Seq
    token: str | None = Field(description="of the order; null: it was on record already")
    effect: str | None = Field(description="what is known of its effect; null: nothing yet, as the campaign follows its record")


class Wave(BaseModel):
    """A wave as it would be drawn."""

    model_config = example(name="canary", targets=200, vins_sha256="0" * 64)

    name: str = Field(description="of the wave")
    targets: Count = Field(description="how many vehicles it has")
    vins_sha256: str = Field(description="SHA-256 of its VINs in the order of the draw, with a line feed between two")


class DryRun(BaseModel):
    """What a proposal would give. Nothing is recorded."""

    model_config = example(
        campaign="eu-map-47",
        plan_sha256="0" * 64,
        data_id="map_eu_47",
        data_bytes=120,
        targets=200,
        in_no_wave=0,
        waves=[{"name": "canary", "targets": 200, "vins_sha256": "0" * 64}],
        warnings=[],
    )

    campaign: Campaign
    plan_sha256: str = Field(description="identity of the plan")
    data_id: str = Field(description="the data that the vehicles get")
    data_bytes: Count | None = Field(description="its size; null: it is not published yet, and the plan waits for it")
    targets: Count = Field(description="vehicles in a wave")
    in_no_wave: Count = Field(description="vehicles of the list that no wave takes")
    waves: list[Wave] = Field(description="in their order")
    warnings: list[str] = Field(description="what may surprise")
