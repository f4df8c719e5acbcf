"""`manifold vin erase`: nothing of a vehicle is left, everything of others is, and no kill or race revives it."""

import contextlib
import gzip
import json
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from redis import Redis
from structlog.testing import capture_logs

from manifold.archive.formats import decode
from manifold.contracts import keys
from manifold.contracts.brakes import EntryTrigger
from manifold.contracts.envelope import Envelope, Stream, to_arrow
from manifold.contracts.errors import Permanent, Retryable
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.tables import ACTIONS, DATA, ERASURES, IDS, META, OUTCOMES, QUALITY, QUARANTINE, SEGMENTS
from manifold.contracts.topics import TRIGGER
from manifold.lake.catalog import open_catalog
from manifold.queues import Loader, Policy
from manifold.settings import Settings
from pipelines.erasure.files import Found, find_in_file
from pipelines.erasure.names import ErasedVehicle
from pipelines.erasure.queues import find_in_redis
from pipelines.erasure.run import Erased, erase, search_all
from pipelines.ingest.branches import RUN_ID, properties_of
from pipelines.ingest.publish import committed_runs
from pipelines.maintenance.check import check
from pipelines.maintenance.garbage_files import expire_snapshots
from pipelines.maintenance.restore import empty_tables
from pipelines.maintenance.rollback import rollback
from tests.pipelines.conftest import SparkLake
from tests.pipelines.lakes import Lake
from tests.pipelines.makers import NOON_MS, at, data, duplicate, envelope, outcome, seq_at, trigger
from tests.pipelines.plain import compact, ingest, read, rows_of, sightings
from tests.pipelines.stepping import Player
from tests.support.servers import Server

GONE, STAYS = "1M8GDM9AXKP042788", "1M8GDM9AXKP042789"  # differ in one character
ESCAPED = GONE.replace("M", "\\u004d", 1)  # in JSON
NOW = at(60_000)
# Errors of a run whose branch or base snapshot was removed. It is retried.
REFUSED = (Retryable, ValueError, CommitFailedException, ValidationException)


@pytest.fixture
def place_of(lake: Lake, redis_server: Server, redis: Redis) -> Lake:
    """A new lake whose settings use the emptied shared Redis."""
    del redis
    lake.renew()
    settings = lake.settings.model_copy(update={"redis_port": redis_server.port})
    return Lake(settings, lake.template)


@pytest.fixture
def known(place_of: Lake) -> Lake:
    """A vehicle named in every possible place, with another one next to it; all of it is in the lake."""
    lake = place_of
    lake.archive(
        Stream.TRIGGER,
        [
            trigger(1, [GONE, STAYS]),
            trigger(2, [GONE]),
            trigger(3, [GONE, 7]),  # refused, and contains the name
            trigger(4, [STAYS, 7]),
            duplicate(5, 1, [GONE, STAYS]),
            trigger(6, [STAYS], headers={"for": GONE, "by": "platform"}),
        ],
    )
    lake.archive(Stream.DATA, [data(21, "d1", b"one"), data(22, f"for_{GONE}_7", b"two"), data(23, "d3", GONE.encode())])
    lake.archive(Stream.OUTCOME, [outcome(31, GONE, 1), outcome(32, STAYS, 1), outcome(33, GONE, 2)])
    catalog = open_catalog(lake.settings)
    ingest(catalog, lake.settings, run_id="run", now=at(0))
    judged = {"run_id": "run", "suite": "s", "rule": "r", "severity": "warning", "outcome": "broken", "judged": 1, "at": at(50)}
    sample = {"unexpected": 1, "sample": json.dumps([{"vin": GONE}])}
    catalog.load_table(QUALITY.identifier).append(rows_of(QUALITY, [judged | sample]))
    settled = {"seq": seq_at(3), "action": "dropped", "at": at(50), "note": f"belongs to {GONE}"}
    catalog.load_table(ACTIONS.identifier).append(rows_of(ACTIONS, [settled]))
    return lake


def erased(lake: Lake, catalog: Catalog | None = None, *, ms: int = 60_000, vin: str = GONE, **more: Any) -> Erased:
    catalog = catalog or open_catalog(lake.settings)
    return erase(catalog, lake.settings, vin, why="asked to", now=at(ms), wait_s=0, seal=lambda _: True, **more)


def named_in(folder: Path, name: str) -> list[str]:
    """Files below that contain the name in any column or in their bytes, read with Arrow only."""
    found = []
    for file in folder.rglob("*"):
        if file.is_file() and file.suffix == ".parquet":
            texts = str(pq.read_table(file).to_pylist())
            found += [str(file)] if name in texts else []
        elif file.is_file():
            found += [str(file)] if name.encode() in file.read_bytes() else []
    return found


def parquet(envelopes: Sequence[Envelope]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(to_arrow(envelopes), sink)
    return bytes(sink.getvalue())


def vins(catalog: Catalog) -> list[tuple[str, int]]:
    return sorted((row["vin"], row["seq"]) for row in read(catalog, IDS))


def test_no_file_keeps_anything_of_the_vehicle_and_everything_of_others_stays(known: Lake) -> None:
    catalog, home = open_catalog(known.settings), known.settings.home
    assert named_in(home, GONE)

    done = erased(known)

    assert (done.proved, done.found) == (True, [])
    assert named_in(home, GONE) == []
    assert done.searched > 10
    assert vins(catalog) == [(STAYS, seq_at(1)), (STAYS, seq_at(6))]
    assert [(row["vin"], row["seq"]) for row in read(catalog, OUTCOMES)] == [(STAYS, seq_at(1))]
    assert [row["seq"] for row in read(catalog, QUARANTINE)] == [seq_at(4)]
    assert [row["data_id"] for row in read(catalog, DATA)] == [row["data_id"] for row in read(catalog, META)] == ["d1"]
    assert [row["sample"] for row in read(catalog, QUALITY)] == [row["note"] for row in read(catalog, ACTIONS)] == [None]
    assert len(read(catalog, SEGMENTS)) == 3
    compared = check(catalog, known.settings, now=NOW)
    assert (compared.agree, compared.troubles) == (True, {})


@pytest.mark.parametrize(
    ("stream", "message", "left"),
    [
        pytest.param(Stream.TRIGGER, trigger(1, [STAYS], headers={GONE: "a", "by": "b"}), [("by", "b")], id="a header's name"),
        pytest.param(
            Stream.TRIGGER, trigger(1, [STAYS], headers={f'{{"{ESCAPED}": 1}}': "a"}), [], id="a header's name, escaped"
        ),
        pytest.param(Stream.TRIGGER, trigger(1, [STAYS], headers={"for": f'["{ESCAPED}"]'}), [], id="a header's value, escaped"),
        pytest.param(Stream.DATA, data(1, "d1", f'{{"for": "{ESCAPED}"}}'.encode()), None, id="a payload, escaped"),
        pytest.param(Stream.TRIGGER, replace(trigger(1, [STAYS]), topic=f"for/{GONE}"), None, id="a topic that ingest refuses"),
        pytest.param(Stream.CAMPAIGN, envelope(1, Stream.CAMPAIGN, f"for/{GONE}", b"{}"), None, id="a refused order's topic"),
        pytest.param(Stream.OUTCOME, envelope(1, Stream.OUTCOME, "outcomes/x", b"?", headers={"for": GONE}), [], id="no outcome"),
        pytest.param(Stream.DATA, data(1, "d1", b"", refused_because=f"not for {GONE}"), None, id="the reason of a refusal"),
    ],
)
def test_a_name_that_only_one_message_of_the_archive_has_in_one_place_is_found(
    place_of: Lake, redis: Redis, stream: Stream, message: Envelope, left: list[tuple[str, str]] | None
) -> None:
    """`left` are the headers that the message keeps; None if the whole message goes."""
    other = data(2, "d2", b"bytes") if stream is Stream.DATA else trigger(2, [STAYS], headers={"by": "b"})
    path = place_of.archive(stream, [message, replace(other, stream=stream)])
    vehicle = ErasedVehicle(GONE, seq_at(60_000))

    found, _ = search_all(open_catalog(place_of.settings), place_of.settings, redis, vehicle)
    done = erased(place_of)

    assert [one.where for one in found] == [path]
    assert (done.proved, done.messages) == (True, 1)
    rows = decode(path, (place_of.settings.home / "archive" / path).read_bytes()).messages.to_pylist()
    assert [row["headers"] for row in rows if row["seq"] == message.seq] == ([] if left is None else [left])
    assert seq_at(2) in [row["seq"] for row in rows]


def test_repeated_and_empty_headers_of_foreign_archives_are_searched(place_of: Lake) -> None:
    table = pq.read_table(pa.BufferReader(parquet([trigger(1, [STAYS])])))
    headers = pa.array([[("for", GONE), ("for", "all"), ("by", None)]], table.schema.field("headers").type)
    file = place_of.settings.home / "archive/trigger/a.parquet"
    file.parent.mkdir(parents=True)
    pq.write_table(table.set_column(table.schema.get_field_index("headers"), "headers", headers), file)

    assert erased(place_of).proved

    assert pq.read_table(file)["headers"].to_pylist() == [[("for", "all"), ("by", None)]]


@pytest.mark.parametrize("is_parquet", [True, False], ids=["Parquet", "JSON Lines"])
def test_fields_of_foreign_archives_that_ingest_ignores_are_searched(place_of: Lake, redis: Redis, is_parquet: bool) -> None:
    payload = json.dumps({"ids": [STAYS], "request_id": "r1", "data_id": "d"})
    message = {"topic": TRIGGER, "payload": payload, "received_at": NOON_MS + 1}
    rows = [message, message | {"origin": {"of": [f"by {GONE}"]}}, message]
    path = "trigger/a.parquet" if is_parquet else "trigger/a.jsonl"
    file = place_of.settings.home / "archive" / path
    file.parent.mkdir(parents=True)
    if is_parquet:
        pq.write_table(pa.Table.from_pylist(rows[1:]), file)
    else:
        long = json.dumps(message)[:-1] + f', "long": {"1" * 5_000}}}'
        file.write_text("\n".join([*map(json.dumps, rows), long, "no message"]))
    before = decode(path, file.read_bytes()).messages
    catalog = open_catalog(place_of.settings)

    found, _ = search_all(catalog, place_of.settings, redis, ErasedVehicle(GONE, seq_at(60_000)))
    done = erased(place_of, catalog)

    assert [one.where for one in found] == [path]
    assert (done.proved, done.messages, done.segments) == (True, 1, 1)
    assert named_in(file.parent, GONE) == []
    assert decode(path, file.read_bytes()).messages.to_pylist() == before.to_pylist()


def test_the_record_states_when_and_why_and_not_who(known: Lake) -> None:
    erased(known)
    rows = sorted(read(open_catalog(known.settings), ERASURES), key=lambda row: row["at"])
    assert [(row["state"], row["why"], row["accepted_before"]) for row in rows] == [
        ("begun", "asked to", NOW),
        ("erased", "asked to", NOW),
    ]
    assert json.loads(rows[1]["counts"])[IDS.name] == 2
    assert GONE not in str(rows)
    with pytest.raises(Permanent, match="must not name the vehicle"):
        erase(open_catalog(known.settings), known.settings, GONE, why=f"{GONE} asked", now=NOW)
    with pytest.raises(Permanent, match="must say why"):
        erase(open_catalog(known.settings), known.settings, GONE, why=" ", now=NOW)


def test_messages_accepted_afterwards_stay_and_end_normally(known: Lake) -> None:
    known.archive(Stream.TRIGGER, [trigger(70_000, [GONE, STAYS])])
    known.archive(Stream.OUTCOME, [outcome(70_001, GONE, 70_000), outcome(70_002, GONE, 1)])  # the last one arrived late
    catalog = open_catalog(known.settings)
    ingest(catalog, known.settings, run_id="later", now=at(80_000))

    done = erased(known)

    assert done.proved
    assert (GONE, seq_at(70_000)) in vins(catalog)
    assert [row["seq"] for row in read(catalog, OUTCOMES) if row["vin"] == GONE] == [seq_at(70_000)]
    assert check(catalog, known.settings, now=NOW).agree


def test_data_published_afterwards_stays_even_if_it_names_the_vehicle(known: Lake) -> None:
    late = [data(70_000, f"since_{GONE}", b"three"), data(70_001, "d8", f"more of {GONE}".encode()), data(70_002, "d1", b"one")]
    known.archive(Stream.DATA, late)
    catalog = open_catalog(known.settings)
    ingest(catalog, known.settings, run_id="later", now=at(80_000))

    done = erased(known)

    assert (done.proved, done.found) == (True, [])
    for rows in (read(catalog, DATA), sightings(catalog)):
        assert sorted(row["data_id"] for row in rows) == ["d1", "d8", f"since_{GONE}"]
    compared = check(catalog, known.settings, now=NOW)
    assert (compared.agree, compared.troubles) == (True, {})


def copy_of(lake: Lake) -> Lake:
    """A copy of the lake whose `renew` restores its current state."""
    template = lake.settings.home.with_name("filled")
    shutil.rmtree(template, ignore_errors=True)
    shutil.copytree(lake.settings.home, template)
    return Lake(lake.settings, template)


def assert_clean(lake: Lake, why: object = None) -> None:
    catalog = open_catalog(lake.settings)
    assert named_in(lake.settings.home, GONE) == [], why
    assert vins(catalog) == [(STAYS, seq_at(1)), (STAYS, seq_at(6))], why
    assert check(catalog, lake.settings, now=NOW).agree, why


def test_an_erasure_killed_before_any_step_resumes_when_run_again(known: Lake) -> None:
    filled, over, steps = copy_of(known), False, 0
    while not over:
        filled.renew()
        player = known.player(lambda catalog: erased(known, catalog), fine=True).go(steps)
        over = player.is_over
        player.kill()
        ingest(open_catalog(known.settings), known.settings, run_id=f"between_{steps}", now=at(0))
        assert erased(known, ms=90_000).proved, player.steps
        assert_clean(known, player.steps)
        steps += 19
    assert steps > 100


@pytest.mark.parametrize("dies", [False, True], ids=["goes on", "dies"])
def test_an_ingest_that_already_read_the_segment_revives_nothing(known: Lake, dies: bool) -> None:
    known.archive(Stream.TRIGGER, [trigger(40, [GONE, STAYS])])
    known.archive(Stream.OUTCOME, [outcome(41, GONE, 40)])
    filled, over = copy_of(known), False
    steps, apart = (4, 8) if dies else (0, 5)  # a run that dies while it reads leaves nothing
    while not over:
        filled.renew()
        player = known.ingesting("in_flight", fine=True, ms=50).go(steps)
        over = player.is_over
        done = erased(known)
        assert done.proved, player.steps
        if dies:
            player.kill()
        else:
            with contextlib.suppress(*REFUSED):
                player.go()
        ingest(open_catalog(known.settings), known.settings, run_id="next", now=at(60))
        catalog = open_catalog(known.settings)
        assert named_in(known.settings.home, GONE) == [], player.steps
        assert vins(catalog) == [(STAYS, seq_at(ms)) for ms in (1, 6, 40)], player.steps
        assert check(catalog, known.settings, now=NOW).agree, player.steps
        steps += apart


@pytest.mark.parametrize("steps", [5, 17, 24, 32])
def test_an_ingest_that_begins_meanwhile_is_published(known: Lake, steps: int) -> None:
    known.archive(Stream.TRIGGER, [trigger(40, [STAYS])])
    players: list[Player] = []

    def begin(step: str) -> None:
        if step.startswith("snapshots") and not players:
            players.append(known.ingesting("meanwhile", fine=True).go(steps))

    assert erased(known, say=begin).proved
    players[0].go()
    assert vins(open_catalog(known.settings)) == [(STAYS, seq_at(ms)) for ms in (1, 6, 40)]
    assert named_in(known.settings.home, GONE) == []


def test_compaction_rollback_and_restore_revive_nothing(known: Lake) -> None:
    catalog, settings = open_catalog(known.settings), known.settings
    player = known.player(lambda catalog: erased(known, catalog))
    player.go(until="commit sdv.ingested_segments")  # the run opens
    player.go(1).go(until="commit sdv.ingested_segments")  # about to commit
    assert compact(catalog, IDS)
    player.go()
    assert_clean(known, player.steps)

    newest = properties_of(committed_runs(catalog.load_table(SEGMENTS.identifier))[0])[RUN_ID]
    for run_id in ("run", newest):
        with pytest.raises(Permanent, match="history does not reach back"):
            rollback(catalog, settings, run_id=run_id, now=NOW)
    known.archive(Stream.TRIGGER, [trigger(50, [STAYS])])
    ingest(catalog, settings, run_id="after", now=at(70_000))
    rollback(catalog, settings, run_id="after", now=NOW)
    assert vins(catalog) == [(STAYS, seq_at(1)), (STAYS, seq_at(6))]
    empty_tables(catalog, NOW)
    ingest(catalog, settings, run_id="again", now=at(80_000))
    assert vins(catalog) == [(STAYS, seq_at(ms)) for ms in (1, 6, 50)]
    assert named_in(settings.home, GONE) == []


def test_the_queues_are_emptied_and_entries_of_others_stay(known: Lake, redis: Redis) -> None:
    settings, catalog = known.settings, open_catalog(known.settings)
    policy = Policy.of(settings)
    loader = Loader(redis, policy)
    late = seq_at(90_000)
    redis.hset(keys.presence(GONE), mapping={"connected": "yes", "subscribed": "yes"})
    loader.enqueue([(GONE, [(seq_at(1), "r"), (seq_at(2), "r"), (late, "r")]), (STAYS, [(seq_at(1), "r")])], NOON_MS)
    redis.hset(keys.inflight(GONE), mapping={"seq": seq_at(1), "published_at": 1, "attempts": 1, "deadline": 1})
    redis.zadd(keys.parked(GONE), {str(seq_at(3)): seq_at(3)})
    redis.zadd(keys.PARKED, {"d9": 1})
    redis.sadd(keys.waiting_for("d9"), f"{GONE} {seq_at(3)}", f"{STAYS} {seq_at(3)}")
    redis.zadd(keys.deadlines(keys.shard_of(GONE, policy.wake_shards)), {GONE: 1})
    loader.add_outcomes(OutcomeRecord(vin, seq_at(1), Outcome.DELIVERED, NOON_MS) for vin in (GONE, STAYS))
    redis.set(keys.data(f"for_{GONE}_7"), b"two")

    done = erased(known, catalog)

    assert done.proved
    assert done.entries == 3
    assert redis.zrange(keys.pending(GONE), 0, -1) == [str(late).encode()]
    mine: Any = redis.keys(f"*{GONE}*")
    assert sorted(mine) == [keys.pending(GONE).encode(), keys.presence(GONE).encode()]
    assert redis.smembers(keys.waiting_for("d9")) == {f"{STAYS} {seq_at(3)}".encode()}
    outcomes: Any = redis.xrange(keys.OUTCOMES)
    assert [OutcomeRecord.from_wire(fields[b"o"]).vin for _, fields in outcomes] == [STAYS]
    assert redis.zrange(keys.pending(STAYS), 0, -1) == [str(seq_at(1)).encode()]


def test_triggers_in_redis_that_name_it_go_and_other_and_later_ones_stay(known: Lake, redis: Redis) -> None:
    loader = Loader(redis, Policy.of(known.settings))
    named = {2: ("task_1", f"for_{GONE}_7"), 3: (f"task_of_{GONE}", "d1"), 4: ("task_1", "d1"), 90_000: ("t", f"for_{GONE}_8")}
    loader.store_triggers({seq_at(ms): EntryTrigger(*named[ms]) for ms in named})

    done = erased(known)

    assert (done.proved, done.found) == (True, [])
    assert sorted(cast(list[bytes], redis.keys("t:*"))) == sorted(keys.trigger(seq_at(ms)).encode() for ms in (4, 90_000))


def test_the_search_finds_triggers_in_redis_that_name_it(redis: Redis, known: Lake) -> None:
    Loader(redis, Policy.of(known.settings)).store_triggers(
        {seq_at(ms): EntryTrigger("t", f"for_{GONE}_{ms}") for ms in (1, 2, 90_000)}
    )
    assert find_in_redis(redis, ErasedVehicle(GONE, seq_at(60_000))) == [Found("t:*", "triggers", 2)]


def put_back(redis: Redis, seq: int) -> None:
    """Act as a dispatcher may at any time: cache data of the lake for another vehicle and note one more waiting entry."""
    redis.set(keys.data(f"map-{GONE}"), b"one")
    redis.set(keys.data("d7"), f"two of {GONE}".encode())
    redis.set(keys.data("d9"), b"three")
    redis.zadd(keys.PARKED, {f"map-{GONE}": NOON_MS, "d9": NOON_MS})
    for data_id in (f"map-{GONE}", "d9"):
        redis.sadd(keys.waiting_for(data_id), f"{STAYS} {seq}")


def test_data_cached_by_a_dispatcher_before_the_tables_are_erased_is_removed_again(known: Lake, redis: Redis) -> None:
    steps: list[str] = []

    def say(step: str) -> None:
        steps.append(step)
        if step == "the tables":
            put_back(redis, seq_at(3))

    assert erased(known, say=say).proved
    assert steps.count("the tables") == 1, "the search must find it"
    assert redis.keys(f"*{GONE}*") == []
    assert sorted(cast(list[bytes], redis.keys("d:*"))) == [b"d:d9"]
    assert redis.zrange(keys.PARKED, 0, -1) == [b"d9"]
    assert redis.smembers(keys.waiting_for("d9")) == {f"{STAYS} {seq_at(3)}".encode()}


def test_the_search_finds_cached_data_and_its_waiting_entries(known: Lake, redis: Redis) -> None:
    def say(step: str) -> None:
        if step.startswith("searching"):
            put_back(redis, seq_at(3))

    with capture_logs() as logs:
        done = erased(known, say=say)

    assert done.found == [Found("d:*", "payloads", 2), Found(f"p:map-{GONE}", "members"), Found(keys.PARKED, "data ids")]
    with capture_logs() as later_logs:
        assert erased(known, ms=90_000).proved
    ends = ("vehicle erased", "erasure incomplete: places still name the vehicle")
    assert [entry["event"] for entry in logs if entry["event"] in ends] == [ends[1]]
    assert [entry["event"] for entry in later_logs if entry["event"] in ends] == ["vehicle erased"]


def test_entries_waiting_for_newer_data_under_its_name_keep_waiting(known: Lake, redis: Redis) -> None:
    late = seq_at(90_000)
    put_back(redis, late)
    redis.sadd(keys.waiting_for(f"map-{GONE}"), f"{STAYS} {seq_at(3)}", STAYS)

    assert erased(known).proved
    assert redis.smembers(keys.waiting_for(f"map-{GONE}")) == {f"{STAYS} {late}".encode()}
    assert redis.zrange(keys.PARKED, 0, -1) == [b"d9", f"map-{GONE}".encode()]


def test_short_names_are_searched_in_data_ids_and_not_in_queue_payloads(redis: Redis) -> None:
    redis.mset({keys.data("d1"): b"\x00V1\x00", keys.data("V1.map"): b"one", keys.data("for:V1"): b"two"})
    redis.zadd(keys.PARKED, {"V1.map": 1, "for:V1": 1})
    assert find_in_redis(redis, ErasedVehicle("V1", seq_at(1))) == [Found(keys.PARKED, "data ids"), Found("d:*", "payloads")]


def test_recorder_journals_are_erased_and_an_unreachable_recorder_stops_it(place_of: Lake) -> None:
    def seal(_: Settings) -> bool:
        place_of.archive(Stream.TRIGGER, [trigger(7, [GONE, STAYS])])
        return True

    catalog = open_catalog(place_of.settings)
    with pytest.raises(Retryable, match="cannot be asked to close"):
        erase(catalog, place_of.settings, GONE, why="asked to", now=NOW, wait_s=0, seal=lambda _: False)
    assert erase(catalog, place_of.settings, GONE, why="asked to", now=NOW, wait_s=0, seal=seal).proved
    ingest(catalog, place_of.settings, run_id="run", now=NOW)
    assert vins(catalog) == [(STAYS, seq_at(7))]


def test_foreign_archives_are_rewritten_in_their_own_format(place_of: Lake) -> None:
    root, settings = place_of.settings.home / "archive", place_of.settings
    lines = [
        {"topic": TRIGGER, "payload": json.dumps({"ids": [GONE], "request_id": "r1", "data_id": "d"})},
        {"topic": TRIGGER, "payload": json.dumps({"ids": [STAYS, GONE], "request_id": "r2", "data_id": "d"})},
        {"topic": TRIGGER, "payload": json.dumps({"ids": [STAYS], "request_id": "r3", "data_id": "d"})},
    ]
    text = "\n".join(["", *(json.dumps(line | {"received_at": NOON_MS + 1}) for line in lines), "no message", f"none: {GONE}"])
    files = {"trigger/a.jsonl": text.encode(), "trigger/b.jsonl.gz": gzip.compress(text.encode())}
    array = json.dumps([line | {"received_at": NOON_MS + 2} for line in lines]).replace("}, {", "},\n{")
    files["trigger/d.jsonl"] = f"[\n{array[1:-1]}\n]\n".encode()
    files["trigger/broken.parquet"] = f"no Parquet, for {GONE}".encode()
    table = pq.read_table(pa.BufferReader(parquet([trigger(9, [GONE, STAYS]), trigger(10, [STAYS])]))).drop(["seq"])
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    files["trigger/c.parquet"] = bytes(sink.getvalue())
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    catalog = open_catalog(settings)
    before = {path: decode(path, files[path]).messages for path in files if "broken" not in path}

    done = erased(place_of, catalog)

    assert done.proved
    assert not (root / "trigger/broken.parquet").exists()
    for path, messages in before.items():
        after = decode(path, (root / path).read_bytes()).messages
        assert GONE not in str(after.to_pylist())
        stay = [row["seq"] for row in messages.to_pylist() if STAYS.encode() in row["payload"] or row["payload"] == b"no message"]
        assert sorted(after["seq"].to_pylist()) == sorted(stay), path


def test_a_name_is_a_word_and_short_ones_are_not_searched_in_foreign_bytes(place_of: Lake) -> None:
    named = [trigger(1, ["V1", "V10", "x-V1"]), trigger(2, ["V1"]), trigger(3, [7, "V1"])]
    place_of.archive(Stream.TRIGGER, [*named, trigger(4, [7, "V10"])])
    place_of.archive(Stream.DATA, [data(11, "d1", b"\x00V1\x00"), data(12, "V1.map", b"bytes")])
    catalog = open_catalog(place_of.settings)
    ingest(catalog, place_of.settings, run_id="run", now=at(0))
    with Redis(port=place_of.settings.redis_port) as redis:
        found, _ = search_all(catalog, place_of.settings, redis, ErasedVehicle("V1", seq_at(60_000)))
    kinds = {Path(one.where).suffix for one in found}
    assert kinds == {".parquet", ".avro"}, "bounds in manifests contain such short names whole"

    assert erased(place_of, vin="V1").proved
    assert vins(catalog) == [("V10", seq_at(1)), ("x-V1", seq_at(1))]
    assert [row["seq"] for row in read(catalog, QUARANTINE)] == [seq_at(4)]
    assert {row["data_id"] for row in read(catalog, DATA)} == {"d1", "V1.map"}


@pytest.mark.parametrize("packed", [True, False])
def test_avro_sync_markers_and_packed_bytes_name_nobody(tmp_path: Path, packed: bool) -> None:
    def avro(rows: bytes) -> Path:
        mark = b"mark:\x00V1\x00a block"  # the 16-byte sync marker, in the header and after each block
        codec = b"deflate" if packed else b"null"
        block = zlib.compress(rows, 0, wbits=-zlib.MAX_WBITS) + b" V1 " if packed else rows
        head = b"Obj\x01" + bytes([2, 2 * len(b"avro.codec")]) + b"avro.codec" + bytes([2 * len(codec)]) + codec + b"\x00"
        file = tmp_path / f"{len(rows)}.avro"
        file.write_bytes(head + mark + bytes([2, 2 * len(block)]) + block + mark)
        return file

    def places(file: Path) -> list[str]:
        return [one.what for one in find_in_file(fs.LocalFileSystem(), str(file), ErasedVehicle("V1", seq_at(60_000)))]

    assert places(avro(b"V10 and V2")) == []
    assert places(avro(b"V10 and V1")) == ["bytes"]


def test_spark_reads_writes_and_collects_an_erased_lake(spark_lake: SparkLake, redis_server: Server, redis: Redis) -> None:
    del redis
    settings = spark_lake.settings.model_copy(update={"redis_port": redis_server.port})
    spark_lake.write(Stream.TRIGGER, [trigger(1, [GONE, STAYS]), trigger(2, [GONE])])
    spark_lake.write(Stream.OUTCOME, [outcome(3, GONE, 1), outcome(4, STAYS, 1)])
    spark_lake.ingest("one")
    spark_lake.spark.sql(f"DELETE FROM {settings.catalog_name}.{OUTCOMES.identifier} WHERE vin = 'nobody'")
    assert erase(spark_lake.catalog, settings, GONE, why="asked to", now=NOW, wait_s=0, seal=lambda _: True).proved

    for table, expected in ((IDS, [STAYS]), (OUTCOMES, [STAYS])):
        name = f"{settings.catalog_name}.{table.identifier}"
        spark_lake.spark.sql(f"REFRESH TABLE {name}")
        assert [row["vin"] for row in spark_lake.spark.table(name).collect()] == expected
        spark_lake.spark.sql(f"CALL {settings.catalog_name}.system.rewrite_manifests('{table.identifier}')")
    spark_lake.write(Stream.TRIGGER, [trigger(70_000, [STAYS])])
    spark_lake.ingest("two")
    gone = expire_snapshots(spark_lake.spark, spark_lake.catalog, settings, now=at(90_000) + timedelta(days=400), dry_run=False)
    assert gone[IDS.name].count
    assert spark_lake.rows(IDS, "vin", "seq") == [(STAYS, seq_at(1)), (STAYS, seq_at(70_000))]
    assert named_in(settings.home, GONE) == []


def test_entries_deleted_by_spark_next_to_live_ones_name_nobody_afterwards(
    spark_lake: SparkLake, redis_server: Server, redis: Redis
) -> None:
    """A compaction leaves the old file's bounds in a manifest with a live file; they contain a short name whole."""
    del redis
    settings, day_ms = spark_lake.settings.model_copy(update={"redis_port": redis_server.port}), 86_400_000
    spark_lake.write(Stream.TRIGGER, [trigger(1, ["V1", "V2"]), trigger(day_ms + 1, ["V2"])])
    spark_lake.ingest("one")
    first_day = "ts < TIMESTAMP '2026-03-02 00:00:00+00:00'"
    spark_lake.spark.sql(
        f"CALL {settings.catalog_name}.system.rewrite_data_files(table => '{IDS.identifier}', where => \"{first_day}\", "
        "options => map('rewrite-all', 'true'))"
    )
    head = spark_lake.catalog.load_table(IDS.identifier).current_snapshot()
    assert head is not None
    manifests = head.manifests(spark_lake.catalog.load_table(IDS.identifier).io)
    assert any(manifest.deleted_files_count and manifest.has_existing_files() for manifest in manifests)

    done = erase(spark_lake.catalog, settings, "V1", why="asked to", now=at(2 * day_ms), wait_s=0, seal=lambda _: True)

    assert (done.proved, done.found) == (True, [])
    assert spark_lake.rows(IDS, "vin", "seq") == [("V2", seq_at(1)), ("V2", seq_at(day_ms + 1))]
