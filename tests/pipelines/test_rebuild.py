"""A rebuild killed half-way under load: repeated, every pending entry is queued, and nothing returns."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.outcomes import Outcome
from manifold.contracts.tables import IDS, OUTCOMES
from manifold.lake.reads import TRIGGER_COLUMNS
from manifold.queues import Loader, Policy, _loader
from manifold.settings import Settings
from pipelines.populate.load import populate
from pipelines.populate.workers import entry_loader
from tests.pipelines.conftest import new_session
from tests.pipelines.makers import at, seq_at
from tests.support.lake_rows import new_lake
from tests.support.servers import Server

VEHICLES, A_FLUSH = 10, 2


@pytest.fixture
def settings(tmp_path: Path, redis_server: Server) -> Settings:
    return Settings(home=tmp_path, redis_port=redis_server.port)


@pytest.fixture
def catalog(settings: Settings) -> Catalog:
    """Ten vehicles with entries 1, 2 and 3; 3 was delivered to every vehicle."""
    catalog = new_lake(settings)
    ids = [
        {"vin": f"V{n}", "ts": at(ms), "request_id": f"r{ms}", "seq": seq_at(ms), "data_id": "d", "applied": True}
        for n in range(VEHICLES)
        for ms in (1, 2, 3)
    ]
    catalog.load_table(IDS.identifier).append(pa.Table.from_pylist(ids, schema=IDS.arrow_schema))
    ended: list[dict[str, Any]] = [
        {"vin": f"V{n}", "seq": seq_at(3), "outcome": "delivered", "accepted_at": at(3), "ended_at": at(4)}
        for n in range(VEHICLES)
    ]
    catalog.load_table(OUTCOMES.identifier).append(pa.Table.from_pylist(ended, schema=OUTCOMES.arrow_schema))
    return catalog


def load_here(catalog: Catalog, settings: Settings) -> int:
    """Load all pending entries in this process, as Spark's workers do; return the number queued."""
    entries = catalog.load_table(IDS.identifier).scan(selected_fields=("vin", "seq", *TRIGGER_COLUMNS)).to_arrow()
    work = entry_loader(settings.redis, Policy.of(settings), 0)
    pending = entries.filter(pc.not_equal(entries["seq"], seq_at(3)))
    return sum(row["queued"] for batch in work(pending.to_batches()) for row in batch.to_pylist())


def queued(redis: Redis) -> dict[str, list[int]]:
    found: dict[str, Any] = {f"V{n}": redis.zrange(keys.pending(f"V{n}"), 0, -1) for n in range(VEHICLES)}
    return {vin: [int(seq) for seq in seqs] for vin, seqs in found.items()}


def test_a_rebuild_killed_half_way_is_completed_by_the_next(
    catalog: Catalog, settings: Settings, redis: Redis, one_spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_loader, "OWNERS_PER_FLUSH", A_FLUSH)
    flush, flushes = Loader._flush, []

    def die_at_the_third(self: Loader, *arguments: Any) -> Any:
        flushes.append(arguments)
        if len(flushes) == 3:
            raise KeyboardInterrupt
        return flush(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Loader, "_flush", die_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            load_here(catalog, settings)
    there = {vin: seqs for vin, seqs in queued(redis).items() if seqs}
    assert len(there) == 2 * A_FLUSH
    assert not redis.exists(keys.LOADED), "so status still says that a rebuild is needed"

    served = next(iter(there))  # unknown to the lake when the rebuild continues
    list(Loader(redis, Policy.of(settings)).end([(served, [seq_at(1)])], Outcome.DELIVERED, 0))
    done = populate(new_session(one_spark, settings), catalog, settings, now=at(100), everything=True)
    assert done.offered == 2 * VEHICLES
    assert done.queued == 2 * (VEHICLES - len(there))
    assert queued(redis) == {f"V{n}": [seq_at(1), seq_at(2)] for n in range(VEHICLES)} | {served: [seq_at(2)]}
    assert redis.exists(keys.LOADED)
