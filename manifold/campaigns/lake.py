"""Reads the facts of a campaign from the lake's tables. They are the same facts as those in the archive."""

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

RELEASE_COLUMNS = ("seq", "vin", "wave", "step", "until")
OUTCOME_COLUMNS = ("vin", "seq", "outcome", "ended_at", "dispatched_at", "recorded_seq")


class LakeRecord(Struct, frozen=True):
    """The facts and first publishes of a campaign that are in the lake: sufficient for folding and verifying the campaign."""

    facts: tuple[Fact, ...]  # by seq
    sent: tuple[Sent, ...]


def read_campaign(catalog: Catalog, campaign: str) -> LakeRecord:
    """Read everything about a campaign from the main branches of the lake's tables.

    The caller has to prevent that an ingest run is published during the call, because the tables of a run become visible one
    after the other.

    Raises:
        Permanent: the lake has no record of the campaign.
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
    return LakeRecord(tuple(sorted(facts, key=lambda fact: fact.seq)), sent)


def _orders(catalog: Catalog, campaign: str) -> Iterator[Recorded]:
    """Yield the campaign's orders, without those that this release of Manifold does not know."""
    table = catalog.load_table(CAMPAIGN_EVENTS.identifier)
    for row in table.scan(where(EqualTo, "campaign", campaign), ("seq", "record")).to_arrow().to_pylist():
        command = decode(row["record"])
        if not isinstance(command, Refused):  # another release of Manifold may have recorded a kind of order that is unknown here
            yield Recorded(row["seq"], command)


def _releases(catalog: Catalog, campaign: str) -> Iterator[Released]:
    """Yield the campaign's releases by seq, each with its VINs in alphabetical order."""
    scan = catalog.load_table(IDS.identifier).scan(where(EqualTo, "campaign", campaign), RELEASE_COLUMNS)
    rows = scan.to_arrow().sort_by([("seq", "ascending"), ("vin", "ascending")])
    for seq, first_row, row_count in _row_ranges(rows["seq"]):
        (row,) = rows.slice(first_row, 1).to_pylist()  # wave, step and until are the same in all rows of a release
        vins = tuple(rows["vin"].slice(first_row, row_count).to_pylist())
        until_ms = None if row["until"] is None else _unix_ms(row["until"])
        yield Released(seq, row["wave"], row["step"], vins, until_ms)


def _row_ranges(sorted_seqs: pa.ChunkedArray) -> Iterator[tuple[int, int, int]]:
    """Yield each distinct seq with the index of its first row and the number of its rows."""
    first_row = 0
    for run in pc.value_counts(sorted_seqs).to_pylist():
        yield run["values"], first_row, run["counts"]
        first_row += run["counts"]


def _outcomes(catalog: Catalog, releases: list[Released]) -> list[dict[str, Any]]:
    """Return the rows of the outcomes of these releases. `releases` are sorted by seq."""
    if not releases:
        return []
    first_release_at = datetime_of(releases[0].seq)
    after_last_release = datetime_of(releases[-1].seq) + timedelta(milliseconds=1)
    accepted_with_releases: BooleanExpression = And(
        where(GreaterThanOrEqual, "accepted_at", first_release_at), where(LessThan, "accepted_at", after_last_release)
    )
    # The filter by instant limits which files are read; the seqs select the rows.
    seqs = pa.array((release.seq for release in releases), pa.int64())
    rows: list[dict[str, Any]] = []
    scan = catalog.load_table(OUTCOMES.identifier).scan(accepted_with_releases, OUTCOME_COLUMNS)
    for batch in scan.to_arrow_batch_reader():
        rows += batch.filter(pc.is_in(batch["seq"], value_set=seqs)).to_pylist()
    return rows


def _answers(catalog: Catalog, campaign: str, releases: list[Released]) -> Iterator[Answered]:
    """Yield the answers of vehicles to these releases. Answers to other seqs do not concern the campaign."""
    table = catalog.load_table(CAMPAIGN_ANSWERS.identifier)
    seqs = {release.seq for release in releases}
    for row in table.scan(where(EqualTo, "campaign", campaign), ("seq", "vin", "release", "status")).to_arrow().to_pylist():
        if row["release"] in seqs:
            yield Answered(row["seq"], row["vin"], row["release"], Answer(row["status"]))


def _ended(row: dict[str, Any]) -> Ended:
    """Return the fact of an outcome.

    If no recorder recorded the outcome, because the entry was ended in the lake, the fact gets the lowest seq of that instant.
    """
    seq = row["recorded_seq"]
    if seq is None:
        seq = seq_of(_unix_ms(row["ended_at"]), 0, 0)
    return Ended(seq, row["vin"], row["seq"], Ending(row["outcome"]))


def _unix_ms(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)
