"""Reads the facts of a campaign from the lake: the same facts as from the archive, where only the tables are at hand."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual, LessThan

from manifold.campaigns.facts import Answer, Answered, Ended, Ending, Fact, Recorded, Released
from manifold.campaigns.falsifications import Sent
from manifold.contracts.campaigns import decode
from manifold.contracts.errors import Permanent
from manifold.contracts.messages import Refused
from manifold.contracts.seq import datetime_of, seq_of
from manifold.contracts.tables import CAMPAIGN_ANSWERS, CAMPAIGN_EVENTS, IDS, OUTCOMES
from manifold.lake.catalog import where

RELEASE = ("seq", "vin", "wave", "step", "until")
OUTCOME = ("vin", "seq", "outcome", "ended_at", "dispatched_at", "recorded_seq")


class OfLake(Struct, frozen=True):
    """The facts and first publishes of a campaign, as the lake has them: enough to fold and verify it."""

    facts: tuple[Fact, ...]  # by seq
    sent: tuple[Sent, ...]


def read_campaign(catalog: Catalog, campaign: str) -> OfLake:
    """Everything that the lake's main branches have of a campaign.

    Let no run be published meanwhile: its tables become visible one after the other.

    Raises:
        Permanent: they have nothing of the campaign.
    """
    try:
        releases = list(_releases(catalog, campaign))
        outcomes = _outcomes(catalog, releases)
        facts: list[Fact] = [*_orders(catalog, campaign), *releases, *map(_ended, outcomes)]
        facts += _answers(catalog, campaign, releases)
    except NoSuchTableError:  # nothing has been ingested yet
        facts, outcomes = [], []
    if not facts:
        raise Permanent(f"the lake has no record of campaign {campaign!r}; it comes with the next run of ingest_archives")
    sent = tuple(
        Sent(row["vin"], row["seq"], _unix_ms(row["dispatched_at"])) for row in outcomes if row["dispatched_at"] is not None
    )
    return OfLake(tuple(sorted(facts, key=lambda fact: fact.seq)), sent)


def _orders(catalog: Catalog, campaign: str) -> Iterator[Recorded]:
    table = catalog.load_table(CAMPAIGN_EVENTS.identifier)
    for row in table.scan(where(EqualTo, "campaign", campaign), ("seq", "record")).to_arrow().to_pylist():
        command = decode(row["record"])
        if not isinstance(command, Refused):  # of an order that another release of Manifold has recorded
            yield Recorded(row["seq"], command)


def _releases(catalog: Catalog, campaign: str) -> Iterator[Released]:
    """The campaign's triggers, each with its vehicles in alphabetical order."""
    scan = catalog.load_table(IDS.identifier).scan(where(EqualTo, "campaign", campaign), RELEASE)
    rows = scan.to_arrow().sort_by([("seq", "ascending"), ("vin", "ascending")])
    for seq, first, number in _runs(rows["seq"]):
        (row,) = rows.slice(first, 1).to_pylist()
        vins = tuple(rows["vin"].slice(first, number).to_pylist())
        yield Released(seq, row["wave"], row["step"], vins, None if row["until"] is None else _unix_ms(row["until"]))


def _runs(sorted_seqs: pa.ChunkedArray) -> Iterator[tuple[int, int, int]]:
    """Each seq, where its rows begin, and how many there are."""
    first = 0
    for run in pc.value_counts(sorted_seqs).to_pylist():
        yield run["values"], first, run["counts"]
        first += run["counts"]


def _outcomes(catalog: Catalog, releases: list[Released]) -> list[dict[str, Any]]:
    if not releases:
        return []
    since, until = datetime_of(releases[0].seq), datetime_of(releases[-1].seq) + timedelta(milliseconds=1)
    within: BooleanExpression = And(where(GreaterThanOrEqual, "accepted_at", since), where(LessThan, "accepted_at", until))
    seqs = pa.array((release.seq for release in releases), pa.int64())
    found: list[dict[str, Any]] = []
    for batch in catalog.load_table(OUTCOMES.identifier).scan(within, OUTCOME).to_arrow_batch_reader():
        found += batch.filter(pc.is_in(batch["seq"], value_set=seqs)).to_pylist()
    return found


def _answers(catalog: Catalog, campaign: str, releases: list[Released]) -> Iterator[Answered]:
    """The answers of vehicles to these releases. Answers to anything else do not concern the campaign."""
    table, seqs = catalog.load_table(CAMPAIGN_ANSWERS.identifier), {release.seq for release in releases}
    for row in table.scan(where(EqualTo, "campaign", campaign), ("seq", "vin", "release", "status")).to_arrow().to_pylist():
        if row["release"] in seqs:
            yield Answered(row["seq"], row["vin"], row["release"], Answer(row["status"]))


def _ended(row: dict[str, Any]) -> Ended:
    """The fact of an outcome. If the platform ended the entry in the lake, there is no record: its time stands in for the seq."""
    seq = row["recorded_seq"] if row["recorded_seq"] is not None else seq_of(_unix_ms(row["ended_at"]), 0, 0)
    return Ended(seq, row["vin"], row["seq"], Ending(row["outcome"]))


def _unix_ms(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)
