"""Queues against lake: every kind of difference is found, checked again, reported, and repaired on request."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from msgspec import structs
from pyspark.sql import functions as sf
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.envelope import Envelope, Stream
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.tables import IDS, OUTCOMES, SEGMENTS
from manifold.lake.catalog import ensure_tables
from manifold.queues import Loader, Policy
from manifold.settings import Settings
from pipelines.maintenance.verify import Verified, verify
from pipelines.maintenance.verify_digest import SEED, hash_long
from pipelines.maintenance.verify_redis import Batches, recheck
from tests.pipelines.conftest import Kept, SparkLake, kept
from tests.pipelines.makers import at, seq_at
from tests.support.servers import Server, free_port

DAY_MS = 86_400_000
NOW_MS = 100
OLD_MS = -31 * DAY_MS
NONE = dict.fromkeys(("missing", "unrecorded", "ended", "extra", "overdue", "disordered", "stray"), 0)


def add(spark_lake: SparkLake, *entries: tuple[int, str, str | None]) -> None:
    """Append entries (milliseconds, vin, outcome or None) to the lake."""
    ids = [
        {"vin": vin, "ts": at(ms), "request_id": f"r{ms}", "seq": seq_at(ms), "data_id": "d", "applied": True}
        for ms, vin, _ in entries
    ]
    spark_lake.append(IDS, ids)
    ended = [
        {"vin": vin, "seq": seq_at(ms), "outcome": how, "accepted_at": at(ms), "ended_at": at(ms + 1)}
        for ms, vin, how in entries
        if how
    ]
    if ended:
        spark_lake.append(OUTCOMES, ended)


@pytest.fixture(scope="module")
def made(new_spark_lake: Callable[[Path], SparkLake], tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A lake of entries, with no segment beyond the 50th millisecond."""
    lake = new_spark_lake(tmp_path_factory.mktemp("verified") / "home")
    ensure_tables(lake.catalog)
    add(lake, (1, "V1", None), (2, "V1", None), (3, "V1", None), (1, "V2", None), (2, "V2", "delivered"))
    newest = {"path": "p", "stream": "trigger", "messages": 1, "first_seq": seq_at(1), "last_seq": seq_at(50)}
    lake.append(SEGMENTS, [newest | {"run_id": "r", "ingested_at": at(60)}])
    return kept(lake)


@pytest.fixture
def home(made: Kept, redis_server: Server, redis: Redis) -> SparkLake:
    """V1 waits for 1, 2 and 3, V2 for 1; V2's 2 was delivered. The queues agree, and hold entries too new to be ingested."""
    lake, ports = made.renewed(), {"redis_port": redis_server.port, "recorder_port": free_port()}
    home = replace(lake, settings=lake.settings.model_copy(update=ports))
    queue(home, redis, ("V1", [1, 2, 3, 70]), ("V2", [1]))
    queue(home, redis, ("V7", [2]), node=3)  # of another recorder without ingested segments
    redis.zadd(keys.done("V8"), {str(seq_at(9)): 1})
    redis.set(keys.LOADED, 1)
    return home


def queue(spark_lake: SparkLake, redis: Redis, *owners: tuple[str, list[int]], node: int = 0) -> None:
    entries = ((vin, [(seq_at(ms, node), "")]) for vin, all_ms in owners for ms in all_ms)
    Loader(redis, Policy.of(spark_lake.settings)).enqueue(entries, 0)


def run(spark_lake: SparkLake, *, repair: bool = False) -> Verified:
    return verify(spark_lake.spark, spark_lake.catalog, spark_lake.settings, now=at(NOW_MS), repair=repair)


def queued(redis: Redis, vin: str) -> list[int]:
    found: Any = redis.zrange(keys.pending(vin), 0, -1)
    return [int(seq) for seq in found]


def disturb(home: SparkLake, redis: Redis) -> None:
    """Cause one difference of each kind."""
    redis.zrem(keys.pending("V1"), seq_at(2))  # missing
    queue(home, redis, ("V2", [2]), ("V5", [7]))  # ended; extra
    add(home, (OLD_MS, "V6", None))
    queue(home, redis, ("V6", [OLD_MS]))  # overdue
    redis.zadd(keys.pending("V1"), {str(seq_at(3)): seq_at(0)})  # disordered
    redis.hset(keys.inflight("V9"), mapping={"seq": seq_at(4)})  # stray


def test_agreeing_queues_pass_and_the_next_comparison_checks_again(home: SparkLake, redis: Redis) -> None:
    result = run(home)
    assert (result.loaded, result.agree, result.in_queues, result.too_young, result.report) == (True, True, 6, 2, None)
    assert result.differences == NONE

    redis.zrem(keys.pending("V1"), seq_at(2))
    assert run(home).differences == NONE | {"missing": 1}


def test_each_kind_of_difference_is_found_reported_and_repaired(home: SparkLake, redis: Redis) -> None:
    disturb(home, redis)
    result = run(home, repair=True)
    assert result.differences == dict.fromkeys(NONE, 1) | {"unrecorded": 0}
    assert result.repaired == {"missing": 1, "ended": 1, "disordered": 1}
    assert not result.agree  # extra and stray entries have no remedy
    reported = {(r["difference"], r["vin"], r["seq"]) for r in pq.read_table(f"{result.report}/differences.parquet").to_pylist()}
    assert reported == {
        ("missing", "V1", seq_at(2)),
        ("ended", "V2", seq_at(2)),
        ("extra", "V5", seq_at(7)),
        ("overdue", "V6", seq_at(OLD_MS)),
        ("disordered", "V1", seq_at(3)),
        ("stray", "V9", seq_at(4)),
    }
    assert queued(redis, "V1") == [seq_at(1), seq_at(2), seq_at(3), seq_at(70)]
    assert not redis.exists(keys.trigger(seq_at(2)))  # a dispatcher reads it from the lake, with all that a release says
    assert queued(redis, "V2") == [seq_at(1)]
    assert not redis.exists(keys.done("V2"))


def test_corrupt_keys_stop_no_other_comparison(home: SparkLake, redis: Redis) -> None:
    add(home, (5, "V5", None), (5, "V6", None))
    for key in (keys.pending("V5"), keys.inflight("V5"), keys.done("V5")):
        redis.set(key, "something else")
    redis.zadd(keys.pending("V6"), {"what is this": 0, str(seq_at(5)): seq_at(5)})
    redis.hset(keys.inflight("V2"), "seq", "what is this")
    redis.zrem(keys.pending("V1"), str(seq_at(2)))

    assert run(home).differences == NONE | {"missing": 2}, "V5's, missing in its corrupt queue, and V1's"


def test_a_change_during_the_comparison_is_no_difference(home: SparkLake, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    disturb(home, redis)

    def after_a_while(url: str) -> Batches:
        redis.zadd(keys.pending("V1"), {str(seq_at(2)): seq_at(2), str(seq_at(3)): seq_at(3)})
        redis.delete(keys.pending("V2"), keys.pending("V5"), keys.pending("V6"), keys.inflight("V9"))
        add(home, (5, "V1", None))
        redis.zrem(keys.pending("V2"), seq_at(1))
        home.append(OUTCOMES, [{"vin": "V2", "seq": seq_at(1), "outcome": "delivered", "accepted_at": at(1), "ended_at": at(9)}])
        return recheck(url)

    monkeypatch.setattr("pipelines.maintenance.verify_entries.recheck", after_a_while)
    assert run(home).differences == NONE


def test_both_sides_compute_the_same_hash(spark_lake: SparkLake) -> None:
    seqs = [0, 1, -1, seq_at(1), 2**63 - 1, -(2**63)]
    rows = spark_lake.spark.createDataFrame([(seq, seq ^ 12345) for seq in seqs], "vehicle bigint, seq bigint")
    theirs = [row[0] for row in rows.select(sf.xxhash64("vehicle", "seq")).collect()]
    vehicles, entries = (np.array([row[n] for row in rows.collect()], np.int64).view(np.uint64) for n in (0, 1))
    assert hash_long(entries, hash_long(vehicles, SEED)).view(np.int64).tolist() == theirs


def end_in_queues_alone(redis: Redis, ms: int = 2) -> OutcomeRecord:
    """Cancel an entry of V1, by a process that died; return the expected outcome."""
    redis.zrem(keys.pending("V1"), seq_at(ms))
    redis.zadd(keys.done("V1"), {str(seq_at(ms)): 4})
    return OutcomeRecord("V1", seq_at(ms), Outcome.CANCELLED, round(at(NOW_MS).timestamp() * 1000))


def all_is_in_the_archive(_: Settings) -> bool:
    """Answer as the recorders would: everything is in the archive."""
    return True


def test_an_outcome_known_only_to_the_queues_is_found_and_recorded(
    home: SparkLake, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.maintenance.verify_outcomes.flush", all_is_in_the_archive)
    record = end_in_queues_alone(redis)

    repaired = run(home, repair=True)

    assert repaired.differences == NONE | {"unrecorded": 1}
    assert repaired.repaired == {"unrecorded": 1}

    stream: Any = redis.xrange(keys.OUTCOMES)
    (found,) = [OutcomeRecord.from_wire(fields[b"o"]) for _, fields in stream]
    assert structs.replace(found, reason=None) == record
    assert run(home).differences == NONE  # it is under way now


def test_outcomes_under_way_are_no_difference(home: SparkLake, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is in the stream, the next in the archive, and the last one comes into the lake meanwhile."""
    in_stream, in_archive, _ = [end_in_queues_alone(redis, ms) for ms in (1, 2, 3)]
    redis.xadd(keys.OUTCOMES, {"o": in_stream.to_wire()})
    redis.xadd(keys.OUTCOMES, {"other": "things"})
    home.write(Stream.OUTCOME, [Envelope(seq_at(80), at(80), Stream.OUTCOME, "outcomes/V1", in_archive.to_wire())])

    def looks(_: Settings) -> bool:
        row = {"vin": "V1", "seq": seq_at(3), "outcome": "cancelled", "accepted_at": at(3), "ended_at": at(9)}
        home.append(OUTCOMES, [row])
        return True

    monkeypatch.setattr("pipelines.maintenance.verify_outcomes.flush", looks)
    assert run(home).differences == NONE


def test_an_outcome_that_may_be_in_a_journal_is_no_difference(home: SparkLake, redis: Redis) -> None:
    end_in_queues_alone(redis)
    assert run(home).differences == NONE  # no recorder can be asked
