"""Recorded entries that are not in the lake are found without parsing everything, and no answer loads unneeded modules."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.envelope import DUPLICATE_OF, Envelope, Stream, hour_folder, segment_path, to_arrow
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.seq import MAX_SEQ, datetime_of, seq_of
from manifold.contracts.signals.records import topic_of
from manifold.contracts.topics import TRIGGER
from manifold.history.entry import Bounds, EntryHistory
from manifold.history.from_archive import MAX_SEARCHED_TEXTS, read_recorded, triggers_recorded
from manifold.history.signals import device_signals
from manifold.lake.catalog import open_catalog
from manifold.sandbox.platform.programs import environment
from manifold.settings import Settings
from tests.support.servers import ROOT, Server

HOUR_AGO_MS = int((datetime.now(UTC) - timedelta(hours=1)).timestamp() * 1000)


def seq(n: int) -> int:
    return seq_of(HOUR_AGO_MS + n, 0, 0)


def trigger(n: int, payload: str, **more: object) -> Envelope:
    return Envelope(seq(n), datetime_of(seq(n)), Stream.TRIGGER, TRIGGER, payload.encode(), **more)  # type: ignore[arg-type]  # a field each


def outcome(n: int, vin: str, of: int, how: Outcome) -> Envelope:
    record = OutcomeRecord(vin, seq(of), how, HOUR_AGO_MS + n)
    return Envelope(seq(n), datetime_of(seq(n)), Stream.OUTCOME, f"outcomes/{vin}", record.to_wire())


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """An archive of two trigger segments and one outcome segment."""
    settings = Settings(home=tmp_path_factory.mktemp("recorded"))
    first = [
        trigger(1, '{"ids": ["V1", "V2"], "request_id": "task_1", "data_id": "d"}'),
        trigger(2, r'{"ids": ["\u0056\u0031"], "request_id": "\u0074ask_2", "data_id": "d"}'),  # V1 and task_2 with escapes
        trigger(3, '{"ids": ["V10"], "request_id": "task_10", "data_id": "d"}'),
        trigger(4, '{"ids": ["V1"], "request_id": "task_1", "data_id": "d"}', headers={DUPLICATE_OF: str(seq(1))}),
        trigger(5, '{"ids": ["V1", "A B"], "request_id": "task_1", "data_id": "d"}', refused_because="a bad VIN"),
    ]
    second = [trigger(6, '{"ids": ["V2"], "request_id": "task_1", "data_id": "d"}')]
    ends = [
        outcome(7, "V1", 1, Outcome.DELIVERED),
        outcome(8, "V1", 1, Outcome.CANCELLED),  # the first outcome counts
        outcome(9, "V10", 3, Outcome.DELIVERED),
        outcome(10, "V2", 0, Outcome.EXPIRED),  # for a trigger in the lake
    ]
    for messages in (first, second, ends):
        file = settings.home / "archive" / segment_path(messages[0].stream, messages[0].seq, 0)
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(to_arrow(messages), file)
    return settings


def test_a_vehicle_is_found_by_its_exact_name_in_any_json_spelling(settings: Settings) -> None:
    found = read_recorded(settings, set(), vin="V1")

    assert [n for n, _ in found.triggers] == [seq(1), seq(2)]
    assert {key: record.outcome for key, record in found.outcomes.items() if key[0] == "V1"} == {
        ("V1", seq(1)): Outcome.DELIVERED
    }


@pytest.mark.parametrize(
    ("request_id", "triggers"),
    [
        pytest.param("task_1", [1, 6], id="one name is a prefix of another"),
        pytest.param("task_2", [2], id="spelled with escapes"),
        pytest.param("task_3", [], id="never sent"),
    ],
)
def test_a_batch_is_found_by_its_name(settings: Settings, request_id: str, triggers: list[int]) -> None:
    assert list(triggers_recorded(settings, set(), request_id, Bounds())) == [seq(n) for n in triggers]


@pytest.mark.parametrize(
    "others", [pytest.param(0, id="searched for by name"), pytest.param(MAX_SEARCHED_TEXTS, id="too many to search for")]
)
def test_outcomes_of_a_batch_are_found_by_its_triggers_including_the_lake(settings: Settings, others: int) -> None:
    seqs = {seq(0), seq(1), *range(others)}

    found = read_recorded(settings, set(), seqs=seqs).outcomes

    assert found.keys() == {("V1", seq(1)), ("V2", seq(0))}


def test_an_ingested_segment_is_not_read(settings: Settings) -> None:
    ingested = {segment_path(Stream.TRIGGER, seq(1), 0)}

    assert list(triggers_recorded(settings, ingested, "task_1", Bounds())) == [seq(6)]


def test_the_newest_triggers_are_kept_with_a_limited_number_of_vehicles(settings: Settings) -> None:
    newest = triggers_recorded(settings, set(), "task_1", Bounds(limit=1, entries=1))
    assert {n: (t.vehicles, t.vins) for n, t in newest.items()} == {seq(1): (2, ()), seq(6): (1, ("V2",))}
    assert list(triggers_recorded(settings, set(), "task_1", Bounds(before=seq(6)))) == [seq(1)]


def test_what_others_put_into_the_archive_stops_no_answer(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    good = [trigger(1, '{"ids": ["V1"], "request_id": "task_1", "data_id": "d"}')]
    ends = [outcome(2, "V1", 1, Outcome.FAILED), outcome(3, "V1", 1, Outcome.DELIVERED)]
    beyond = json.dumps(json.loads(ends[0].payload) | {"ended_ms": 1 << 60}).encode()
    of_others = (
        ("trigger", to_arrow(good).drop_columns(["stream"])),
        ("outcome", to_arrow([replace(ends[0], payload=beyond), ends[1]])),
        ("xray_raw", to_arrow([replace(good[0], stream=Stream.XRAY_RAW, topic=topic_of(Stream.XRAY_RAW, "device-1"))])),
    )
    for stream, table in of_others:
        folder = tmp_path / "archive" / hour_folder(Stream(stream), good[0].received_at)
        folder.mkdir(parents=True)
        pq.write_table(table, folder / "of-others.parquet")

    found = read_recorded(settings, set(), vin="V1")

    assert [(seq, trigger.ids) for seq, trigger in found.triggers] == [(good[0].seq, ("V1",))]
    (entry,) = [EntryHistory("V1", good[0].seq, "task_1", "d")]
    assert found.with_outcome(entry).state == "delivered"
    assert device_signals(settings, open_catalog(settings), "device-1", limit=5, before=MAX_SEQ).signals == []


@pytest.mark.parametrize("words", [("vin", "show", "V1"), ("batch", "show", "task_1")], ids=" ".join)
def test_an_answer_loads_neither_spark_nor_the_logging_library(
    settings: Settings, own_redis: Server, words: tuple[str, ...]
) -> None:
    here = settings.model_copy(update={"redis_port": own_redis.port, "recorder_port": 1, "api_port": 1})

    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "manifold.console", *words, "--json"],
        env={**os.environ, **environment(here)},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    loaded = set(re.findall(r"\| +([\w.]+)$", done.stderr, re.MULTILINE))
    assert "pyarrow.parquet" in loaded
    assert not loaded & {"pyspark", "structlog"}
    assert str(seq(1)) in done.stdout


def test_a_key_of_another_type_is_reported_with_its_remedy(settings: Settings, own_redis: Server) -> None:
    with Redis(port=own_redis.port) as redis:
        redis.set(keys.pending("V1"), "something else")
    here = settings.model_copy(update={"redis_port": own_redis.port, "recorder_port": 1, "api_port": 1})

    done = subprocess.run(
        [sys.executable, "-m", "manifold.console", "vin", "show", "V1"],
        env={**os.environ, **environment(here)},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )

    assert done.returncode == 1
    assert "has a type that Manifold does not use there" in done.stderr
    assert "delete it, then run `manifold rebuild`" in done.stderr
