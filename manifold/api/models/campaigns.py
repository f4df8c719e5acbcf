"""Bodies of orders to campaigns, and response models of campaigns."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from manifold.api.models.fields import Count, Seq, Vin, example
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
CampaignId = Annotated[str, Field(description="id of the campaign")]
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
    by: str = Field(description="whose token was shown")
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


WAVE = {
    "name": "canary",
    "targets": 200,
    "states": {"delivered": 180, "released": 20},
    "released": 200,
    "known": 180,
    "success": 180,
}
STATE = {
    "campaign": "eu-map-47",
    "state": "running",
    "because": "it is approved",
    "version": 4,
    "data_id": "map_eu_47",
    "plan_sha256": "0" * 64,
    "proposed_at": "2026-12-01T12:00:00Z",
    "authors": ["anna"],
    "approved_by": ["ben"],
    "approvals_needed": 1,
    "targets": 200,
    "states": {"delivered": 180, "released": 20},
    "wave": 0,
    "waves": [WAVE],
    "rate": {"per_minute": 60, "last_60_s": 58},
    "tripped": [],
    "amendment": None,
    "newest_seq": 911974771715997696,
}
EVENT = {
    "seq": 911974771715997696,
    "at": "2026-12-01T12:00:00Z",
    "do": "pause",
    "by": "anna",
    "why": "smoke",
    "without_effect": None,
    "details": {"rule": "r1", "counts": {"count": 3, "known": 100}},
}
TARGET = {
    "vin": "1M8GDM9AXKP042788",
    "wave": 0,
    "wave_name": "canary",
    "zone": "Europe/Berlin",
    "state": "delivered",
    "since": "2026-12-01T12:00:00Z",
    "not_before": None,
}
States = Annotated[dict[str, Count], Field(description="how many targets have which state")]


class WaveState(BaseModel):
    """A wave and how far it is."""

    model_config = example(**WAVE)

    name: str = Field(description="of the wave")
    targets: Count = Field(description="vehicles in it")
    states: States
    released: Count = Field(description="targets that were released")
    known: Count = Field(description="targets that have settled")
    success: Count = Field(description="targets that have settled well")


class Rate(BaseModel):
    """Releases a minute."""

    model_config = example(per_minute=60, last_60_s=58)

    per_minute: Count | None = Field(description="that the plan allows now; null: any number")
    last_60_s: Count = Field(description="vehicles released in the last 60 s")


class Amendment(BaseModel):
    """A plan that waits for its approval."""

    model_config = example(by="anna", widens=["rate"], approved_by=[])

    by: str = Field(description="its author")
    widens: list[str] = Field(description="the fields in which it allows more")
    approved_by: list[str] = Field(description="who has approved it")


class CampaignState(BaseModel):
    """Where a campaign is, and why."""

    model_config = example(**STATE)

    campaign: CampaignId
    state: str = Field(description="`proposed`, `running`, `held`, `paused`, `refused`, `cancelled`, `completed`")
    because: str = Field(description="why it is there")
    version: Version
    data_id: str | None = Field(description="the data that the vehicles get")
    plan_sha256: str = Field(description="identity of the plan")
    proposed_at: datetime | None = Field(description="when it was proposed")
    authors: list[str] = Field(description="who proposed and amended the plan")
    approved_by: list[str] = Field(description="who approved the plan")
    approvals_needed: Count = Field(description="how many people have to approve the plan")
    targets: Count = Field(description="vehicles; of a proposal: those listed")
    states: States
    wave: Count = Field(description="place of the open wave")
    waves: list[WaveState] = Field(description="in their order; none before the first approval")
    rate: Rate
    tripped: list[str] = Field(description="the rules that a resume has to accept")
    amendment: Amendment | None = Field(description="a plan that waits for its approval")
    newest_seq: Seq


class CampaignList(BaseModel):
    """Campaigns, oldest proposal first."""

    model_config = example(campaigns=[STATE])

    campaigns: list[CampaignState] = Field(description="the campaigns on record")


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
    wave: Count | None = Field(description="place of the wave whose gate it is")
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


class Target(BaseModel):
    """A target and its state."""

    model_config = example(**TARGET)

    vin: Vin
    wave: Count = Field(description="place of its wave")
    wave_name: str = Field(description="name of its wave")
    zone: str | None = Field(description="its time zone, as the list has it")
    state: str = Field(description="`waiting`, `released`, or how it has settled")
    since: datetime | None = Field(description="since when; null: from the beginning")
    not_before: datetime | None = Field(description="when its retry may be released")


class TargetPage(BaseModel):
    """A page of a campaign's targets, in the order of waves and draw."""

    model_config = example(campaign="eu-map-47", targets=[TARGET], after=None)

    campaign: CampaignId
    targets: list[Target] = Field(description="of this page")
    after: str | None = Field(description="the next page has what comes after this VIN; null: there is nothing more")


class Event(BaseModel):
    """A recorded order."""

    model_config = example(**EVENT)

    seq: Seq
    at: datetime = Field(description="when it was recorded")
    do: str = Field(description="the order")
    by: str = Field(description="who ordered it: a person, or `campaigner/<node>`")
    why: str | None = Field(description="the reason that was given")
    without_effect: str | None = Field(description="why it had no effect; null: it had one")
    details: dict[str, Any] = Field(description="further fields of that order")


class EventPage(BaseModel):
    """A page of a campaign's orders, oldest first."""

    model_config = example(campaign="eu-map-47", events=[EVENT], after=None)

    campaign: CampaignId
    events: list[Event] = Field(description="of this page")
    after: Seq | None = Field(description="the next page has what comes after this seq; null: there is nothing more")


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


class VehicleCampaign(Target):
    """A campaign that a vehicle is a target of."""

    model_config = example(campaign="eu-map-47", campaign_state="running", **TARGET)

    campaign: CampaignId
    campaign_state: str = Field(description="the state of the campaign")


class VehicleCampaigns(BaseModel):
    """The campaigns of a vehicle, oldest proposal first."""

    model_config = example(vin="1M8GDM9AXKP042788", campaigns=[{"campaign": "eu-map-47", "campaign_state": "running", **TARGET}])

    vin: Vin
    campaigns: list[VehicleCampaign] = Field(description="that it is a target of")
