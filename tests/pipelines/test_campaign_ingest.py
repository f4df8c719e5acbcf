"""Orders and releases of a campaign become rows, from which the campaign can be folded and judged again."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as with_fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from manifold.campaigns.facts import Answer, Answered, Ended, Fact, Recorded, Released
from manifold.campaigns.falsifications import Kind
from manifold.campaigns.fold import Campaign, fold
from manifold.campaigns.lake import read_campaign
from manifold.campaigns.parsing import plan_sha256
from manifold.campaigns.verification import verify
from manifold.contracts import campaigns as r
from manifold.contracts.envelope import Stream
from manifold.contracts.errors import Permanent
from manifold.contracts.outcomes import Outcome
from manifold.contracts.seq import datetime_of, seq_of
from manifold.contracts.tables import (
    CAMPAIGN_ANSWERS,
    CAMPAIGN_EVENTS,
    CAMPAIGN_TARGETS,
    CAMPAIGNS,
    IDS,
    OUTCOMES,
    QUARANTINE,
)
from manifold.contracts.topics import CAMPAIGN
from manifold.history.entry import Bounds
from manifold.history.from_lake import read_page, read_triggers
from manifold.history.lake_pages import read_vehicles
from pipelines.ingest.backlog import ingest_and_audit
from pipelines.ingest.publish import publish
from pipelines.maintenance.check import check
from tests.manifold.campaigns.plans import NOW, document, fleet_here, proposed, vins
from tests.pipelines.campaign_makers import archive, messages
from tests.pipelines.conftest import Kept, SparkLake, kept
from tests.pipelines.makers import NOON_MS, at, outcome, seq_at, trigger
from tests.pipelines.plain import read, rewrite

pytestmark = pytest.mark.slow
NAME, DAY = "maps-47", 86_400_000
WAVES = [
    {"name": "own cars", "vins": ["OWN-1"], "gate": {"success": "100%"}},
    {"name": "first", "size": "50%", "gate": {"success": "50%", "soak": "1h", "approve": 1}},
    {"name": "rest", "size": "rest"},
]
WINDOW = {"from": "08:00", "to": "20:00", "zone": "vehicle", "else": "Europe/Berlin"}
PLAN = document(number=6, waves=WAVES, rate=2, window=WINDOW, success={"by": "answer", "within": "2h"})
LISTED = (r.Target("LISTED-1", "Asia/Tokyo"), r.Target("LISTED-2", wave="rest"))
TABLES = (CAMPAIGNS, CAMPAIGN_EVENTS, CAMPAIGN_TARGETS, CAMPAIGN_ANSWERS, IDS, OUTCOMES)


def finished(**fields: Any) -> list[Fact]:
    """The record of a campaign for nine vehicles, of which one fails."""
    plan = PLAN | fields
    visits = dict.fromkeys((*vins(6), "OWN-1", "LISTED-1", "LISTED-2"), ((0, 1 << 60),))
    fleet = fleet_here(0, failing=frozenset({"LISTED-1"}), answers={vins(6)[0]: None, vins(6)[1]: Answer.FAILED})
    world = proposed(plan, replace(fleet, visits=visits), LISTED)
    world.run(NOW + 5 * DAY)
    return list(world.facts)


def run(lake: SparkLake, run_id: str = "run") -> Any:
    done = ingest_and_audit(lake.run(run_id, ms=NOW + 10 * DAY - NOON_MS))
    publish(lake.catalog, run_id)
    return done


def in_order(facts: list[Fact]) -> list[Fact]:
    """By seq, and the vehicles of a release by name: rows have no order."""
    ordered = sorted(facts, key=lambda fact: fact.seq)
    return [replace(fact, vins=tuple(sorted(fact.vins))) if isinstance(fact, Released) else fact for fact in ordered]


@dataclass(frozen=True)
class Ingested:
    """A campaign of the archive in a lake: its facts, what its run wrote, and how that was judged."""

    kept: Kept
    facts: list[Fact]
    written: Any
    judged: Any


@pytest.fixture(scope="module")
def ingested(new_spark_lake: Callable[[Path], SparkLake], tmp_path_factory: pytest.TempPathFactory) -> Ingested:
    lake, facts = new_spark_lake(tmp_path_factory.mktemp("campaign") / "home"), finished()
    archive(lake, facts, PLAN)
    written, judged = run(lake)
    return Ingested(kept(lake), facts, written, judged)


def test_a_campaign_becomes_rows_once_and_the_rows_the_same_facts(ingested: Ingested) -> None:
    spark_lake, facts, written, judged = ingested.kept.renewed(), ingested.facts, ingested.written, ingested.judged

    assert judged.failures == ()
    assert {finding.rule for finding in judged.warnings} == {"vin_is_iso_3779", "data_id_is_known"}
    assert (written.read["campaign"], written.refused) == (sum(isinstance(fact, Recorded) for fact in facts), 0)
    proposal = facts[0].seq
    columns = ("campaign", "seq", "at", "do", "by", "data_id", "plan_sha256")
    assert spark_lake.rows(CAMPAIGNS, *columns) == [
        (NAME, proposal, datetime_of(proposal), "propose", "author", "map_47", plan_sha256(PLAN))
    ]
    listed = {(vin, zone, wave) for vin, zone, wave in spark_lake.rows(CAMPAIGN_TARGETS, "vin", "zone", "wave")}
    assert listed == {
        ("OWN-1", None, "own cars"),
        ("LISTED-1", "Asia/Tokyo", None),
        ("LISTED-2", None, "rest"),
        *((vin, None, None) for vin in vins(6)),
    }
    passed = [(fact.seq, fact.command) for fact in facts if isinstance(fact, Recorded) and isinstance(fact.command, r.Pass)]
    found = spark_lake.catalog.load_table(CAMPAIGN_EVENTS.identifier).scan("do = 'pass'").to_arrow().to_pylist()
    assert sorted((row["seq"], row["wave"], json.loads(row["counts"]), row["seen"]) for row in found) == [
        (seq, order.wave, order.counts, order.seen) for seq, order in passed
    ]
    assert set(spark_lake.rows(CAMPAIGN_TARGETS, "vin_is_iso_3779")) == {False}
    answers = [fact for fact in facts if isinstance(fact, Answered)]
    assert spark_lake.rows(CAMPAIGN_ANSWERS, "seq", "vin", "release", "status", "reason", "received_at") == [
        (one.seq, one.vin, one.release, one.answer, "so it is", datetime_of(one.seq)) for one in answers
    ]
    again = read_campaign(spark_lake.catalog, NAME)
    assert in_order(list(again.facts)) == in_order(facts)
    assert fold(Campaign(), again.facts).tallies == fold(Campaign(), facts).tallies
    assert verify(again.facts, again.sent) == ()
    assert len(again.sent) == sum(isinstance(fact, Ended) for fact in facts)
    with pytest.raises(Permanent, match="the lake has no record of campaign 'another'"):
        read_campaign(spark_lake.catalog, "another")

    before = {table.name: spark_lake.rows(table) for table in TABLES}
    orders = messages(facts, PLAN)[Stream.CAMPAIGN]
    spark_lake.write(Stream.CAMPAIGN, orders, node=9)
    assert spark_lake.ingest("run").segments == written.segments == 4
    assert spark_lake.ingest("second").skipped == len(orders)
    assert {table.name: spark_lake.rows(table) for table in TABLES} == before


def test_a_bad_order_is_refused_and_stops_nothing(spark_lake: SparkLake) -> None:
    orders = [
        b"no order",
        r.encode(r.Pause(NAME, "ann")).replace(b'"by"', b'"seen":-1,"by"'),
        r.encode(r.Propose(NAME, "ann", plan={"campaign": "other", "targets": 7, "waves": [{"vins": ["A B", 7]}], "x": [2.5]})),
    ]
    facts = [Recorded(seq_of(NOW + place, 0, 0), r.Pause(NAME, "ann")) for place in range(3)]
    (envelopes,) = messages(facts, PLAN).values()
    spark_lake.write(Stream.CAMPAIGN, [replaced(one, payload) for one, payload in zip(envelopes, orders, strict=True)])

    written, judged = run(spark_lake)

    assert written.refused == 2
    assert sorted(spark_lake.rows(QUARANTINE, "payload")) == sorted(orders[:2])
    assert spark_lake.rows(CAMPAIGNS, "seq", "data_id") == [(facts[2].seq, None)]
    assert spark_lake.rows(CAMPAIGN_TARGETS) == []
    assert [finding.rule for finding in judged.warnings] == ["plan_names_its_campaign"]


def replaced(one: Any, payload: bytes) -> Any:
    assert one.topic == CAMPAIGN
    return with_fields(one, payload=payload)


def test_what_is_falsified_in_the_tables_is_found(ingested: Ingested) -> None:
    spark_lake, facts = ingested.kept.renewed(), ingested.facts
    releases = [fact for fact in facts if isinstance(fact, Released)]
    first, last = releases[0], releases[-1]

    def change(seq: int | None = None, vin: str | None = None, **changed: Any) -> set[tuple[Kind, int, str]]:
        """Change the outcomes of this entry's seq, or of this vehicle; return what is found."""
        rows = read(spark_lake.catalog, OUTCOMES)
        for row in rows:
            if seq == row["seq"] or vin == row["vin"]:
                row |= {name: value(row[name]) for name, value in changed.items()}
        rewrite(spark_lake.catalog, OUTCOMES, rows)
        of_lake = read_campaign(spark_lake.catalog, NAME)
        return {(each.kind, each.seq, each.vin) for each in verify(of_lake.facts, of_lake.sent)}

    moved = change(first.seq, dispatched_at=lambda at: at + timedelta(hours=12))
    assert moved == {(Kind.OUTSIDE_WINDOW, first.seq, first.vins[0])}
    altered = change(vin=vins(6)[0], outcome=lambda _: "failed")  # which has not answered
    assert {kind for kind, _, _ in altered - moved} == {Kind.MISCOUNTED}
    steps = [release.step for release in releases]
    extra = replace(releases[2], seq=releases[2].seq + 1, step=max(steps) + 1, vins=last.vins[:1])
    row = {"vin": extra.vins[0], "ts": datetime_of(extra.seq), "request_id": NAME, "seq": extra.seq, "data_id": "map_47"}
    row |= {"applied": True, "campaign": NAME, "wave": extra.wave, "step": extra.step}
    spark_lake.append(IDS, [row | {"until": datetime_of(extra.seq)}])
    of_lake = read_campaign(spark_lake.catalog, NAME)
    beyond = verify(of_lake.facts, of_lake.sent)
    assert any(each.kind is Kind.OVER_RATE and each.seq == extra.seq for each in beyond)


def test_an_entry_that_was_withdrawn_and_delivered_has_both_outcomes(spark_lake: SparkLake) -> None:
    withdrawn, delivered = Outcome.WITHDRAWN, Outcome.DELIVERED
    first = [
        outcome(11, "V1", 1, withdrawn),
        outcome(12, "V2", 1, withdrawn),
        outcome(13, "V2", 1, delivered),
        outcome(14, "V3", 1, delivered),
        outcome(15, "V3", 1, withdrawn),
        outcome(16, "V4", 1, withdrawn),
        outcome(17, "V4", 1, Outcome.FAILED),
    ]
    spark_lake.write(Stream.TRIGGER, [trigger(1, ["V1", "V2", "V3", "V4"], request_id="maps")])
    spark_lake.write(Stream.OUTCOME, first)
    spark_lake.ingest("first")
    late = [outcome(21, "V1", 1, delivered), outcome(22, "V2", 1, delivered), outcome(23, "V4", 1, Outcome.EXPIRED)]
    spark_lake.write(Stream.OUTCOME, late)
    spark_lake.ingest("second")

    assert spark_lake.rows(OUTCOMES, "vin", "outcome", "recorded_seq") == [
        ("V1", "delivered", seq_at(21)),
        ("V1", "withdrawn", seq_at(11)),
        ("V2", "delivered", seq_at(13)),
        ("V2", "withdrawn", seq_at(12)),
        ("V3", "delivered", seq_at(14)),
        ("V4", "withdrawn", seq_at(16)),
    ]
    states = {"V1": "delivered", "V2": "delivered", "V3": "delivered", "V4": "withdrawn"}
    assert dict(read_vehicles(spark_lake.catalog, seq_at(1))) == states
    assert {entry.vin: entry.state for entry in read_triggers(spark_lake.catalog, {seq_at(1)})} == states
    (batch,) = read_page(spark_lake.catalog, "maps", Bounds(limit=10)).batches
    assert batch.states == {"delivered": 3, "withdrawn": 1}
    assert check(spark_lake.catalog, spark_lake.settings, now=at(60_000)).troubles == {}
