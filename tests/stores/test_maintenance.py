"""Ingest, compaction, collection, verification, rebuild, check, restore and rollback on object storage and a REST catalog.

One lake goes through all of them.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.names import Owner
from manifold.contracts.tables import (
    DATA,
    ECQ_INDEX,
    ECQ_PAYLOAD,
    IDS,
    OUTCOMES,
    QUARANTINE,
    SEGMENTS,
    SIGNAL_TABLES,
    XRAY_PROCESSED,
    XRAY_RAW,
    XRAY_STATUS,
    Table,
)
from manifold.history.from_lake import read_entries
from manifold.lake.catalog import open_catalog
from manifold.lake.day_keys import DayKeys
from manifold.lake.key_ring import new_key_line
from manifold.lake.payloads import read_payload
from manifold.queues import EcqLoader, Loader, Policy
from pipelines.erasure.run import erase
from tests.pipelines.makers import NOON_MS, data, ecq_ack, ecq_write, outcome, seq_at, trigger
from tests.pipelines.plain import read
from tests.pipelines.signal_makers import Sealing, readings
from tests.pipelines.test_erasure import named_in
from tests.stores.places import Deployed, on_object_storage
from tests.stores.stages import Failed, Stages
from tests.support.servers import Server, start_redis, stopping

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
VINS = [Owner(f"V{n}") for n in range(10)]
LONG_AGO = 1  # ms after noon of the makers' day, past every retention
AN_HOUR_AGO = int(time.time() * 1000) - NOON_MS - 3_600_000
MOMENT = 1e-6  # days
# With these nothing but pending messages is kept longer than the jobs need; an orphan must be older than a day.
RETENTIONS = {
    "snapshot_retention_days": MOMENT,
    "archive_retention_days": 60,
    "ecq_retention_days": 60,
    "ecq_pending_retention_days": 0,  # until they are fetched
    "signals_retention_days": 60,
    "orphan_days": 1.5,
    "compact_min_files": 2,
}
CLIENT = "c1"
DEVICE, ANOTHER = "device-1", "device-2"
OF_SIGNALS = tuple(table.name for table in SIGNAL_TABLES)
DRY = readings(("humidity", 4, "%"))
DAY = ("run_all --run-id second --no-flush", "compact", "garbage --dry-run", "garbage --run-id gc", "verify --repair")
PENDING = {"pending": seq_at(LONG_AGO + 5), "b": seq_at(AN_HOUR_AGO + 6), "c": seq_at(AN_HOUR_AGO + 8)}


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with stopping(start_redis(tmp_path_factory.mktemp("redis"))) as server:
        yield server


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, redis: Server) -> Iterator[Deployed]:
    """Old data with an unfetched entry, and a batch for ten vehicles; `jobs` adds another batch and an acknowledgement."""
    folder = tmp_path_factory.mktemp("deployed")
    (folder / "ring").write_text(new_key_line())
    with on_object_storage(folder, redis, **RETENTIONS, signals_keys_file=folder / "ring") as deployed:
        with Redis(port=redis.port) as client:
            Loader(client, Policy.of(deployed.settings)).mark_loaded(1)
        deployed.archive(data(LONG_AGO, "old", b"old"), trigger(LONG_AGO + 1, ["V-old"], "old"))
        deployed.archive(data(AN_HOUR_AGO, "d1", b"firmware"), trigger(AN_HOUR_AGO + 1, VINS))
        deployed.archive(ecq_write(LONG_AGO + 2, CLIENT, "acknowledged"), ecq_ack(LONG_AGO + 3, CLIENT, LONG_AGO + 2))
        deployed.archive(ecq_write(LONG_AGO + 4, CLIENT, "a", b"old"), ecq_write(LONG_AGO + 5, CLIENT, "pending", b"old, too"))
        deployed.archive(*(ecq_write(AN_HOUR_AGO + n, CLIENT, key, b"young") for n, key in ((5, "a"), (6, "b"))))
        gateway = Sealing(DayKeys.of(deployed.settings))  # day keys are in the bucket
        deployed.archive(gateway.raw(LONG_AGO + 6, DEVICE, b"old"), gateway.status(LONG_AGO + 7, DEVICE, "online"))
        deployed.archive(gateway.raw(AN_HOUR_AGO + 9, DEVICE, DRY), gateway.status(AN_HOUR_AGO + 10, DEVICE, "online"))
        deployed.archive(gateway.raw(AN_HOUR_AGO + 11, ANOTHER, DRY), gateway.refused(AN_HOUR_AGO + 12, b"{", DEVICE))
        yield deployed


Run = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def process(lake: Deployed, jobs: Stages) -> Run:
    """Run a job on it."""
    return lambda job: jobs.run(job, lake.variables)


@dataclass(frozen=True)
class First:
    """What the first run wrote, as read back after it."""

    ids: int
    payload: bytes | None
    seqs: list[int]  # of a vehicle
    segments: int


@pytest.fixture(scope="module")
def first(lake: Deployed, process: Run) -> First:
    """The lake after its first run."""
    written = process("run_all --run-id first --no-flush")["ingested"]["written"]
    catalog = open_catalog(lake.settings)
    seqs = [entry.seq for entry in read_entries(catalog, VINS[0])]
    return First(written[IDS.name], read_payload(catalog, "d1"), seqs, len(read(catalog, SEGMENTS)))


@pytest.fixture(scope="module")
def run(lake: Deployed, process: Run, first: First) -> Run:
    """The same after the first run: that one is ingested, and the archive of the second is written."""
    lake.archive(trigger(AN_HOUR_AGO + 2, VINS), outcome(AN_HOUR_AGO + 3, VINS[0], AN_HOUR_AGO + 1))
    lake.archive(ecq_ack(AN_HOUR_AGO + 7, CLIENT, AN_HOUR_AGO + 5), ecq_write(AN_HOUR_AGO + 8, CLIENT, "c", b"young"))
    gateway = Sealing(DayKeys.of(lake.settings))
    lake.archive(
        gateway.raw(AN_HOUR_AGO + 13, DEVICE, DRY, captured=AN_HOUR_AGO + 9), gateway.raw(AN_HOUR_AGO + 14, DEVICE, b"-")
    )
    return process


@dataclass(frozen=True)
class Maintained:
    """The output of a day's jobs, and the files planted for one of them."""

    orphan: Path
    of_another: Path
    said: list[dict[str, Any]]  # the outputs of the jobs of `DAY`


@pytest.fixture(scope="module")
def maintained(lake: Deployed, run: Run) -> Maintained:
    """The lake after these jobs."""
    orphan, of_another = plant_orphan(lake), plant_file_of_another_table(lake)
    return Maintained(orphan, of_another, [run(stage) for stage in DAY])


def files_of(lake: Deployed, table: Table) -> list[Path]:
    return sorted((lake.bucket / "warehouse" / table.identifier.replace(".", "/") / "data").rglob("*.parquet"))


def plant_orphan(lake: Deployed) -> Path:
    """A two-day-old orphan file in the table's folder, as a crash leaves it."""
    known = files_of(lake, IDS)[0]
    return old_copy(known, known.with_name("00000-0-orphan.parquet"))


def plant_file_of_another_table(lake: Deployed) -> Path:
    """An equally old file in a folder whose name starts like the table's: in a bucket, that is a matching prefix."""
    table = lake.bucket / "warehouse" / IDS.identifier.replace(".", "/")
    return old_copy(files_of(lake, IDS)[0], table.with_name(f"{table.name}_of_another") / "data" / "file.parquet")


def old_copy(file: Path, copy: Path) -> Path:
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(file.read_bytes())
    two_days_ago = time.time() - 2 * 86_400
    os.utime(copy, (two_days_ago, two_days_ago))
    return copy


def pending(redis: Server, vin: Owner) -> list[int]:
    with Redis(port=redis.port) as client:
        return [int(seq) for seq in client.zrange(keys.pending(vin), 0, -1)]


def compacted_queue(lake: Deployed, redis: Server) -> tuple[int | None, dict[str, int]]:
    """The client's position, and the seq of each pending key."""
    with Redis(port=redis.port) as client:
        reply = EcqLoader(client, Policy.of(lake.settings)).read_one(CLIENT)
    return reply.acked_seq, {message.key: message.seq for message in reply.messages if not message.is_delivered}


def test_an_archive_is_ingested_and_read_back(first: First) -> None:
    assert first == First(ids=1 + len(VINS), payload=b"firmware", seqs=[seq_at(AN_HOUR_AGO + 1)], segments=12)


def test_maintenance_compacts_collects_verifies_and_rebuilds(lake: Deployed, maintained: Maintained, redis: Server) -> None:
    _, compacted, would, gone, verified = maintained.said

    ids = compacted["tables"][IDS.name]
    assert (ids["before"]["files"], ids["after"]["files"]) == (3, 2)
    signals = compacted["tables"][XRAY_RAW.name]
    assert (signals["before"]["files"], signals["after"]["files"]) == (3, 2)
    assert compacted["queues"]["messages"] == 1  # the superseded one
    for collected in (would, gone):
        assert collected["orphans"][IDS.name]["count"] == 1
        assert collected["orphans"][IDS.name]["sample"][0].endswith(maintained.orphan.name)
        assert collected["expired"]["sample"] == [f"V-old {seq_at(LONG_AGO + 1)}"]
        assert collected["snapshots"][IDS.name]["count"] >= 1
        assert collected["messages"]["sample"] == [f"{CLIENT} {seq_at(LONG_AGO + 2)}"]
        assert collected["segments"]["count"] == 6
        assert collected["signals"]["count"] == 3
    assert (maintained.orphan.exists(), maintained.of_another.exists()) == (False, True)
    assert len(files_of(lake, IDS)) == 2  # replaced files were removed with their snapshots
    catalog = open_catalog(lake.settings)
    assert {d["data_id"] for d in read(catalog, DATA)} == {"d1", "old"}  # no recorder could be asked
    # The outcome came through the archive only: no dispatcher removed the entry from the queue.
    assert {kind: count for kind, count in verified["differences"].items() if count} == verified["repaired"] == {"ended": 1}
    assert (
        {row["key"] for row in read(catalog, ECQ_INDEX)} == {row["key"] for row in read(catalog, ECQ_PAYLOAD)} == {"a", *PENDING}
    )
    assert verified["compacted"] == dict.fromkeys(verified["compacted"], 0)
    assert compacted_queue(lake, redis) == (seq_at(AN_HOUR_AGO + 5), PENDING)


def test_a_rebuild_restores_what_redis_lost(lake: Deployed, run: Run, redis: Server) -> None:
    with Redis(port=redis.port) as client:
        client.flushall()
    rebuilt = run("rebuild")
    assert (rebuilt["populated"]["queued"], rebuilt["populated"]["compacted_queued"]) == (19, len(PENDING))
    assert pending(redis, VINS[1]) == [seq_at(AN_HOUR_AGO + 1), seq_at(AN_HOUR_AGO + 2)]
    assert compacted_queue(lake, redis) == (seq_at(AN_HOUR_AGO + 5), PENDING)


@pytest.mark.usefixtures("maintained")
def test_check_agrees_rollback_reverts_and_restore_recreates_everything(lake: Deployed, run: Run) -> None:
    catalog = open_catalog(lake.settings)
    before = contents(catalog)
    assert run("manifold lake check --json")["findings"] == []
    lake.archive(trigger(AN_HOUR_AGO + 4, ["V-late"]))
    late = run("ingest --run-id late --no-flush")
    run("publish --run-id late")
    assert late["segments"] == 1

    undone = run("manifold lake rollback --run-id late --json")
    assert (undone["undone"], undone["segments"]) == (["late"], 1)
    assert contents(catalog) == before

    with pytest.raises(Failed, match="the archive does not keep it any more"):
        run("manifold lake restore --yes --json")
    restored = run("manifold lake restore --yes --without-history --json")
    assert restored["segments"] == len(read(catalog, SEGMENTS))
    after = contents(catalog)
    assert after[IDS.name] == sorted([*(e for e in before[IDS.name] if e[0] != "V-old"), ("V-late", seq_at(AN_HOUR_AGO + 4))])
    assert after[DATA.name] == [("d1", b"firmware")]
    assert after[OUTCOMES.name] == [(VINS[0], seq_at(AN_HOUR_AGO + 1), "delivered")]
    assert after[ECQ_INDEX.name] == [message for message in before[ECQ_INDEX.name] if message[1] >= seq_at(AN_HOUR_AGO)]
    assert {name: after[name] for name in OF_SIGNALS} == {name: before[name] for name in OF_SIGNALS}
    assert run("manifold lake check --json")["findings"] == []


@pytest.mark.usefixtures("maintained")
def test_signals_are_reprocessed_and_a_device_is_erased(lake: Deployed, run: Run) -> None:
    catalog = open_catalog(lake.settings)
    found = contents(catalog)
    values = {row[1]: [reading["value"] for reading in row[2]] for row in found[XRAY_PROCESSED.name]}
    young = {seq_at(AN_HOUR_AGO + 9): [4], seq_at(AN_HOUR_AGO + 11): [4], seq_at(AN_HOUR_AGO + 14): []}
    assert values == young | {seq: of for seq, of in values.items() if seq < seq_at(AN_HOUR_AGO)}
    assert named_in(lake.bucket, DRY.decode()) == []

    again = run("process_signals --again")
    assert (again["rows"], again["unread"]) == (len(found[XRAY_PROCESSED.name]), 0)
    assert contents(catalog) == found

    assert named_in(lake.bucket, DEVICE)
    done = erase(catalog, lake.settings, DEVICE, why="asked to", now=datetime.now(UTC), wait_s=0, seal=lambda _: True)
    assert done.found == []
    assert named_in(lake.bucket, DEVICE) == []
    left = contents(catalog)
    assert {name: [row[:2] for row in left[name]] for name in OF_SIGNALS} == {
        XRAY_RAW.name: [(ANOTHER, seq_at(AN_HOUR_AGO + 11))],
        XRAY_PROCESSED.name: [(ANOTHER, seq_at(AN_HOUR_AGO + 11))],
        XRAY_STATUS.name: [],
    }
    assert read(catalog, QUARANTINE) == []
    assert [left[name] for name in left if name not in OF_SIGNALS] == [found[name] for name in found if name not in OF_SIGNALS]
    assert run("manifold lake check --json")["findings"] == []


def contents(catalog: Any) -> dict[str, list[tuple[Any, ...]]]:
    """Table content that comes from an archive."""
    columns = (
        (IDS, ("vin", "seq")),
        (DATA, ("data_id", "payload")),
        (OUTCOMES, ("vin", "seq", "outcome")),
        (ECQ_INDEX, ("client_id", "seq", "key")),
        (XRAY_RAW, ("device_id", "seq", "content_digest")),
        (XRAY_PROCESSED, ("device_id", "seq", "readings")),
        (XRAY_STATUS, ("device_id", "seq", "status")),
    )
    return {t.name: sorted(tuple(row[n] for n in names) for row in read(catalog, t, None, *names)) for t, names in columns}
