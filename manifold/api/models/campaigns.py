"""Response models for the state of campaigns, their targets, and their orders."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field

from manifold.api.models.fields import CampaignId, Count, Seq, Vin, example

Version = Annotated[int, Field(ge=0, description="number of orders that had an effect; the `ETag`")]
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
    wave: Count = Field(description="number of the open wave")
    waves: list[WaveState] = Field(description="in their order; none before the first approval")
    rate: Rate
    tripped: list[str] = Field(description="the rules that a resume has to accept")
    amendment: Amendment | None = Field(description="a plan that waits for its approval")
    newest_seq: Seq


class CampaignList(BaseModel):
    """Campaigns, oldest proposal first."""

    model_config = example(campaigns=[STATE])

    campaigns: list[CampaignState] = Field(description="the campaigns on record")


class Target(BaseModel):
    """A target and its state."""

    model_config = example(**TARGET)

    vin: Vin
    wave: Count = Field(description="number of its wave")
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
