"""Response models for the plan of a campaign, its forecast, and its report."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from manifold.api.models.fields import CampaignId, Count, example


class RuleState(BaseModel):
    """A rule, and what it counts now."""

    model_config = example(name="r1", then="pause", over="2%", **{"in": "wave"}, known=180, count=1)

    name: str = Field(description="of the rule")
    then: str = Field(description="what happens when it trips: `pause`, `cancel`, `alert`")
    over: str = Field(description="above which number, or share of those known, it trips")
    where: str = Field(alias="in", description="what it counts: the open `wave`, the `campaign`, or the last such time")
    known: Count = Field(description="targets that have settled")
    count: Count = Field(description="those of them that the rule counts")


class Ask(BaseModel):
    """An approval that is missing."""

    model_config = example(what="plan", wave=None, plan_sha256="0" * 64, approved_by=["ben"], needed=2, answers=1)

    what: str = Field(description="what is to be approved: `plan`, `amendment`, `gate`")
    wave: Count | None = Field(description="number of the wave whose gate it is")
    plan_sha256: str = Field(description="identity of the plan")
    approved_by: list[str] = Field(description="who has approved it so far")
    needed: Count = Field(description="how many people have to")
    answers: Count = Field(description="approvals on record of this campaign, with those that had no effect")


class PlanState(BaseModel):
    """The plan of a campaign as people look at it before they approve."""

    model_config = example(
        campaign="eu-map-47",
        plan={"data_id": "map_eu_47", "ends": "2026-12-20T00:00:00Z"},
        amended=None,
        waves=[200],
        rules=[{"name": "r1", "then": "pause", "over": "2%", "in": "wave", "known": 180, "count": 1}],
        warnings=[],
        asks=[],
    )

    campaign: CampaignId
    plan: dict[str, Any] = Field(description="the plan in force with its defaults; lists of vehicles are their lengths")
    amended: dict[str, Any] | None = Field(description="the plan that waits for its approval")
    waves: list[Count] = Field(description="targets of each wave; of a proposal, as it would be drawn")
    rules: list[RuleState] = Field(description="in their order")
    warnings: list[str] = Field(description="what may surprise")
    asks: list[Ask] = Field(description="the approvals that are missing")


class Quantiles(BaseModel):
    """An instant as a distribution over the draws."""

    model_config = example(p10="2026-12-02T22:25:04Z", p50="2026-12-02T22:26:00Z", p90=None)

    p10: datetime | None = Field(description="in a tenth of the draws it is earlier; null: in so many it never comes")
    p50: datetime | None = Field(description="in half of the draws it is earlier")
    p90: datetime | None = Field(description="in nine tenths of the draws it is earlier")


class Forecast(BaseModel):
    """When shares of the targets would be delivered if the campaign started now and every vehicle were connected."""

    model_config = example(
        campaign="eu-map-47",
        delivered={"50": {"p10": "2026-12-02T22:25:04Z", "p50": "2026-12-02T22:26:00Z", "p90": None}},
        end={"p10": "2026-12-02T22:25:04Z", "p50": "2026-12-02T22:26:00Z", "p90": None},
        never=0,
        draws=200,
    )

    campaign: CampaignId
    delivered: dict[str, Quantiles] = Field(description="by per cent of the targets")
    end: Quantiles = Field(description="when the campaign ends")
    never: Count = Field(description="targets that are not delivered before the end of the plan: the median")
    draws: Count = Field(description="of the fleet")


class Report(BaseModel):
    """The proof of a campaign, from its whole record."""

    model_config = example(campaign="eu-map-47", report={"state": "completed", "is_proved": True, "falsifications": []})

    campaign: CampaignId
    report: dict[str, Any] = Field(
        description="numbers, orders and what the verification found, as manifold campaign report says"
    )
