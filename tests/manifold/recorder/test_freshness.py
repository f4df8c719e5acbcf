"""The lake's age: recorded messages missing in every table are noticed and reported even if no DAG runs."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import SecretStr

from manifold.contracts.envelope import Stream, segment_path
from manifold.contracts.seq import first_seq_at
from manifold.contracts.tables import QUALITY, SEGMENTS
from manifold.lake.catalog import open_catalog
from manifold.lake.freshness import oldest_not_in_lake
from manifold.recorder import _metrics
from manifold.recorder._freshness import Freshness
from manifold.recorder._lake import Lake
from manifold.settings import Settings
from tests.expectations.results import result
from tests.support.hook import hook
from tests.support.lake_rows import append, new_lake

NOW = datetime(2026, 3, 10, 12, tzinfo=UTC)


def record(settings: Settings, ago: timedelta, stream: Stream = Stream.TRIGGER) -> str:
    """Create a segment of the archive; only its name matters here."""
    path = segment_path(stream, first_seq_at(NOW - ago), 0)
    file = settings.home / "archive" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    return path


def take_in(settings: Settings, *paths: str) -> None:
    row = {"stream": "trigger", "messages": 1, "run_id": "run", "ingested_at": NOW}
    rows = pa.Table.from_pylist([{"path": path, **row} for path in paths], schema=SEGMENTS.arrow_schema)
    open_catalog(settings).load_table(SEGMENTS.identifier).append(rows)


@pytest.fixture
def told() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An `alert_url` and the requests that it received."""
    with hook() as listening:
        yield listening


@pytest.fixture
def settings(tmp_path: Path, told: tuple[str, list[dict[str, Any]]]) -> Settings:
    found = Settings(home=tmp_path, alert_url=SecretStr(told[0]))
    new_lake(found)
    return found


def test_age_is_that_of_the_oldest_recent_segment_and_replays_count_from_creation(settings: Settings) -> None:
    catalog = open_catalog(settings)
    assert oldest_not_in_lake(catalog, settings, NOW) is None
    known = record(settings, timedelta(days=3))
    record(settings, timedelta(days=30))
    for hours, stream in ((3, Stream.OUTCOME), (4, Stream.CAMPAIGN), (5, Stream.ANSWER)):
        record(settings, timedelta(hours=hours), stream)
    record(settings, timedelta(minutes=5))
    take_in(settings, known)
    for other in ("_SUCCESS", ".hidden.parquet", "_temporary/0/part-0.parquet", "notes.txt"):
        file = (settings.home / "archive" / known).parent / other
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    replay = settings.home / "archive" / record(settings, timedelta())
    replay.rename(replay.with_name(f"{first_seq_at(NOW - timedelta(days=6))}-0.replay.parquet"))

    assert oldest_not_in_lake(catalog, settings, NOW) == NOW - timedelta(hours=5)


def test_a_lake_over_its_age_limit_alerts_once_until_it_recovers(
    settings: Settings, told: tuple[str, list[dict[str, Any]]]
) -> None:
    async def looks() -> list[float]:
        freshness, ages = Freshness(settings, Lake(settings)), []

        async def look(now: datetime) -> None:
            await freshness.check(now)
            ages.append(_metrics.LAKE_AGE_SECONDS._value.get())

        first = record(settings, timedelta(minutes=30))
        await look(NOW)
        await look(NOW + timedelta(hours=1))
        await look(NOW + timedelta(hours=2))
        take_in(settings, first)
        await look(NOW + timedelta(hours=2))
        record(settings, timedelta(minutes=10))
        await look(NOW + timedelta(hours=2))
        return ages

    assert asyncio.run(looks()) == [1800, 5400, 9000, 0, 7800]
    _, sent = told
    assert [message["what"] for message in sent] == ["lake behind"] * 2
    assert sent[0]["age_seconds"] == 5400
    assert "see that ingest_archives is not paused" in sent[0]["text"]


def test_rules_broken_in_the_newest_audit_are_counted_by_severity(settings: Settings) -> None:
    def told() -> tuple[float, float]:
        asyncio.run(Freshness(settings, Lake(settings)).check(NOW))
        error, warning = (_metrics.LAKE_BROKEN_RULES.labels(severity) for severity in ("error", "warning"))
        return error._value.get(), warning._value.get()

    catalog = open_catalog(settings)
    earlier, later = (NOW - timedelta(hours=hours) for hours in (2, 1))
    assert told() == (0, 0)
    broken = {"outcome": "broken", "at": earlier}
    append(
        catalog, QUALITY, [result(0, rule) | broken for rule in ("a", "b")] + [result(0, "c") | broken | {"severity": "warning"}]
    )
    assert told() == (2, 1)
    append(catalog, QUALITY, [result(1, rule) | {"at": later} for rule in ("a", "b")])
    assert told() == (0, 0)
