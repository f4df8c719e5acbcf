"""Response models for the lake alone: its half of a history, and its freshness."""

from datetime import datetime

from pydantic import BaseModel, Field

from manifold.api.models.entries import BATCH, ENTRY, Entry
from manifold.api.models.fields import Count, DataId, Seq, Vin, example


class LakeEntry(Entry):
    """One entry, as the lake alone knows it."""

    vin: Vin


class LakeEntries(BaseModel):
    """What the lake alone knows of a vehicle."""

    model_config = example(entries=[{"vin": "1M8GDM9AXKP042788", **ENTRY}], before=None, ingested=[])

    entries: list[LakeEntry]
    before: Seq | None = Field(description="the next page has the entries before this `seq`; null: there are no others")
    ingested: list[str] = Field(description="segments ingested since then: what they hold is in the answer")


class LakeBatch(BaseModel):
    """One trigger, as the lake alone knows it."""

    seq: Seq
    data_id: DataId
    vehicles: Count = Field(description="how many it names")
    states: dict[str, Count] = Field(description="how many entries stand how")


class LakeTriggers(LakeEntries):
    """A page of triggers, as the lake alone knows them."""

    model_config = example(
        batches=[{name: value for name, value in BATCH.items() if name != "accepted_at"}],
        before=None,
        told=[911974771715997696],
        entries=[],
        ingested=[],
    )

    batches: list[LakeBatch]
    before: Seq | None = Field(description="the next page has the triggers before this `seq`; null: there are no others")
    told: list[Seq] = Field(description="the triggers whose entries are all among `entries`")


class Freshness(BaseModel):
    """How far the lake is behind the archive."""

    model_config = example(oldest_not_in_lake="2026-11-21T13:42:09Z", age_seconds=74.2, late=False)

    oldest_not_in_lake: datetime | None = Field(description="when the oldest segment began that no run has ingested; null: none")
    age_seconds: float = Field(ge=0, description="its age; 0 where there is none")
    late: bool = Field(description="whether that is more than MANIFOLD_LAKE_LATE_SECONDS")
