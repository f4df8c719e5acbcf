"""An erased vehicle leaves the orders of campaigns and its answers; what is ordered for others, and what they answer, stays."""

import json
from typing import Any

import pytest
from redis import Redis

from manifold.contracts import campaigns as r
from manifold.contracts.envelope import Stream, to_arrow
from manifold.contracts.tables import CAMPAIGN_ANSWERS, ORDER_TABLES
from manifold.contracts.topics import CAMPAIGN, response_topic
from manifold.lake.catalog import open_catalog
from manifold.lake.commits import append_rows
from pipelines.erasure.campaigns import rows_of
from pipelines.erasure.names import ErasedVehicle
from pipelines.erasure.run import erase
from tests.manifold.campaigns.plans import document
from tests.pipelines.lakes import Lake
from tests.pipelines.makers import at, envelope, seq_at
from tests.pipelines.plain import rows_of as as_table
from tests.support.servers import Server

GONE, STAYS = "1M8GDM9AXKP042788", "1HGCM82633A004352"
NAME, BEFORE_MS = "maps-47", 60_000
TARGETS: dict[str, Any] = {"targets": {"vins": [GONE, STAYS]}}
OWN_CARS = [{"name": "own", "vins": [GONE, STAYS]}, {"name": "rest", "size": "rest"}]


def erased(payload: bytes, ms: int = 1, **more: Any) -> bytes | None:
    """What an erasure leaves of an order."""
    (row,) = to_arrow([envelope(ms, Stream.CAMPAIGN, CAMPAIGN, payload, **more)]).to_pylist()
    left = ErasedVehicle(GONE, seq_at(BEFORE_MS)).remove_from(Stream.CAMPAIGN, row)
    return None if left is None else left["payload"]


ORDERS: list[tuple[r.Command, r.Command | None]] = [
    (r.Pause(NAME, "ann", why="wait"), r.Pause(NAME, "ann", why="wait")),
    (r.Pause(NAME, "ann", why=f"{GONE} burns"), r.Pause(NAME, "ann")),
    (r.Pause(NAME, GONE), None),
    (
        r.AddTargets(NAME, "ann", targets=(r.Target(GONE, "Asia/Tokyo"), r.Target(STAYS))),
        r.AddTargets(NAME, "ann", targets=(r.Target(STAYS),)),
    ),
    (r.AddTargets(NAME, "ann", targets=(r.Target(GONE),)), None),
    (
        r.Propose(NAME, "ann", plan=document(**TARGETS)),
        r.Propose(NAME, "ann", plan=document(targets={"vins": [STAYS]})),
    ),
    (
        r.Amend(NAME, "ann", plan=document(targets={"file": "a.csv"}, waves=OWN_CARS)),
        r.Amend(NAME, "ann", plan=document(targets={"file": "a.csv"}, waves=[{"name": "own", "vins": [STAYS]}, OWN_CARS[1]])),
    ),
    (r.Propose(NAME, "ann", plan=document(targets={"vins": [GONE]})), None),
    (r.Propose(NAME, "ann", plan=document(targets={"file": f"{GONE}.csv"})), None),
]


@pytest.mark.parametrize(("order", "left"), ORDERS)
def test_an_order_loses_the_vehicle_or_goes(order: r.Command, left: r.Command | None) -> None:
    assert erased(r.encode(order)) == (None if left is None else r.encode(left))


def test_what_came_since_stays_and_what_was_refused_goes() -> None:
    order = r.encode(r.AddTargets(NAME, "ann", targets=(r.Target(GONE), r.Target(STAYS))))

    assert erased(order, BEFORE_MS + 1) == order
    assert erased(order, refused_because="the door said so") is None
    assert erased(b"no order, and " + GONE.encode()) is None


def test_the_lake_loses_the_vehicle_as_the_archive_does(lake: Lake, redis_server: Server, redis: Redis) -> None:
    del redis  # emptied
    lake.renew()
    settings = lake.settings.model_copy(update={"redis_port": redis_server.port})
    catalog = open_catalog(settings)
    orders = {seq_at(place): r.encode(order) for place, (order, _) in enumerate(ORDERS)}
    left = {seq_at(place): r.encode(order) for place, (_, order) in enumerate(ORDERS) if order is not None}
    later = {seq_at(BEFORE_MS + 1): r.encode(r.AddTargets(NAME, "ann", targets=(r.Target(GONE), r.Target(STAYS))))}
    lake.archive(
        Stream.CAMPAIGN, [envelope(place, Stream.CAMPAIGN, CAMPAIGN, r.encode(o)) for place, (o, _) in enumerate(ORDERS)]
    )
    for some in (orders, later):
        for name, rows in rows_of(some).items():
            append_rows(catalog, next(table for table in ORDER_TABLES if table.name == name), rows, {})

    said = {"received_at": at(20), "campaign": NAME, "release": seq_at(1), "status": "failed"}
    answers = [
        {"vin": GONE, "seq": seq_at(20), "reason": None},
        {"vin": STAYS, "seq": seq_at(21), "reason": f"{GONE} stood there"},
    ]
    append_rows(catalog, CAMPAIGN_ANSWERS, as_table(CAMPAIGN_ANSWERS, [said | row for row in answers]), {})

    done = erase(catalog, settings, GONE, why="asked by its owner", now=at(BEFORE_MS), wait_s=0, seal=lambda _: True)

    assert done.proved, done.found
    assert {table.name: done.rows[table.name] for table in ORDER_TABLES} == dict.fromkeys(
        (table.name for table in ORDER_TABLES), len(ORDERS) - 1
    )
    (kept,) = catalog.load_table(CAMPAIGN_ANSWERS.identifier).scan().to_arrow().to_pylist()
    assert (kept["vin"], kept["seq"], kept["status"], kept["reason"]) == (STAYS, seq_at(21), "failed", None)
    expected = rows_of(left | later)
    for table in ORDER_TABLES:
        by_key = [(name, "ascending") for name in table.key]
        found = catalog.load_table(table.identifier).scan().to_arrow()
        wanted = expected[table.name].sort_by(by_key).to_pylist()
        assert found.select(expected[table.name].column_names).sort_by(by_key).to_pylist() == wanted


def left_of_answer(vin: str, payload: bytes, ms: int = 1, **more: Any) -> bytes | None:
    """What an erasure leaves of an answer."""
    (row,) = to_arrow([envelope(ms, Stream.ANSWER, response_topic("agent", vin, NAME), payload, **more)]).to_pylist()
    left = ErasedVehicle(GONE, seq_at(BEFORE_MS)).remove_from(Stream.ANSWER, row)
    return None if left is None else left["payload"]


def test_answers_of_the_vehicle_go_and_those_of_others_stay() -> None:
    done = b'{"seq": 7, "status": "done"}'
    for payload in (done, b"{"):
        assert left_of_answer(GONE, payload) is None
        assert left_of_answer(STAYS, payload) == payload
    assert left_of_answer(GONE, done, refused_because="too many") is None
    assert left_of_answer(GONE, done, BEFORE_MS + 1) == done


def test_an_answer_that_names_the_vehicle_keeps_its_seq_and_status() -> None:
    names = json.dumps({"seq": 7, "status": "failed", "reason": f"{GONE} was in the way", "more": GONE}).encode()
    left = left_of_answer(STAYS, names)

    assert left is not None
    assert json.loads(left) == {"seq": 7, "status": "failed"}
    assert left_of_answer(STAYS, json.dumps({"seq": 7, "status": GONE}).encode()) is None
    assert left_of_answer(STAYS, names, refused_because=f"reason {GONE}") is None
    assert left_of_answer(STAYS, b"{" + GONE.encode()) is None
