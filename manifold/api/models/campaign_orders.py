"""Request bodies of orders to campaigns, and the response models."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from manifold.api.models.fields import CampaignId, Count, Seq, example
from manifold.contracts.campaigns import Retriable

PLAN: dict[str, Any] = {
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
    "effect": "applied",
    "reason": None,
}
MAX_WHY = 1000  # characters


class Order(BaseModel):
    """The fields that every order may have."""

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
        default=None, ge=0, le=10_000, description="number of the wave whose gate is approved; null: the plan"
    )
    plan_sha256: str = Field(
        default="",
        pattern="^([0-9a-f]{64})?$",
        description="the plan or amendment that was read; refused if another one waits. Empty: the one on record",
    )


class Pass(Order):
    """Override of a gate."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"wave": 0, "why": "the others are in garages"}})

    wave: int = Field(ge=0, le=10_000, description="number of the open wave, whose gate is passed")
    why: str = Field(min_length=1, max_length=MAX_WHY, description="why; it is kept on record")


class Resume(Order):
    """End of a pause."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"accept": ["r1"], "why": "a known fault"}})

    accept: list[str] = Field(default_factory=list, max_length=1000, description="the rules that tripped, by name")


class Retry(Order):
    """Another try for targets that have ended."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"ended": ["failed", "expired"]}})

    ended: list[Retriable] = Field(default=["failed"], min_length=1, max_length=10, description="how they had ended")


class PlanOrder(Order):
    """A plan that is proposed, or that replaces another."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"plan": PLAN, "why": "new maps"}})

    plan: dict[str, Any] = Field(description="the document, as the guide of campaigns says")


class Ordered(BaseModel):
    """An order that is on disk."""

    model_config = example(**ORDERED)

    campaign: CampaignId
    do: str = Field(description="the order")
    by: str = Field(description="who ordered it: the name of the caller's token")
    seq: Seq
    token: str | None = Field(description="of the order")
    effect: str = Field(
        description="`applied`; `none`: it did not fit the campaign; `not in force yet`: the brake is not on; `unknown`"
    )
    reason: str | None = Field(description="why it is not `applied`")


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

    campaign: CampaignId
    plan_sha256: str = Field(description="identity of the plan")
    data_id: str = Field(description="the data that the vehicles get")
    data_bytes: Count | None = Field(description="its size; null: it is not published yet, and the plan waits for it")
    targets: Count = Field(description="vehicles in a wave")
    in_no_wave: Count = Field(description="vehicles of the list that no wave takes")
    waves: list[Wave] = Field(description="in their order")
    warnings: list[str] = Field(description="what may surprise")
