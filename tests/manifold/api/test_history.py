"""History over HTTP: vehicles in pages, triggers of a request, data and its bytes, and the lake half."""

import hashlib
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

from manifold.contracts.seq import datetime_of, seq_of
from manifold.contracts.tables import IDS, OUTCOMES
from manifold.queues import Queues
from manifold.sandbox.platform.programs import environment
from tests.manifold.api.desk import Desk
from tests.manifold.queues.triggers import enqueue_trigger
from tests.support.lake_rows import append, append_payloads
from tests.support.servers import ROOT

NOW = time.time_ns() // 1_000_000
VIN, REQUEST_ID, DATA_ID = "HISTORY-1", "task_history", "data_history"
SEQS = [seq_of(NOW - 1000 * ago, 1, 0) for ago in (500, 400, 300, 200, 100)]
PAYLOAD = b"\x00\xff bytes"


@pytest.fixture(scope="module")
def told(desk: Desk) -> Desk:
    """Four triggers in the lake, the first two delivered; a fifth in the queues only."""
    ids = [
        {"vin": vin, "ts": datetime_of(seq), "request_id": REQUEST_ID, "seq": seq, "data_id": DATA_ID, "applied": True}
        for seq in SEQS[:4]
        for vin in (VIN, "HISTORY-2")
    ]
    append(desk.catalog, IDS, ids)
    ended = {"outcome": "delivered", "attempts": 1, "vin": VIN}
    at = datetime_of(SEQS[4])
    rows = [ended | {"seq": seq, "accepted_at": datetime_of(seq), "acknowledged_at": at, "ended_at": at} for seq in SEQS[:2]]
    append(desk.catalog, OUTCOMES, rows)
    append_payloads(desk.catalog, {DATA_ID: PAYLOAD}, at=datetime.now(UTC))

    async def body(queues: Queues) -> None:
        for seq in SEQS[2:]:
            await enqueue_trigger(queues, seq, [VIN], REQUEST_ID, DATA_ID, NOW)

    desk.use(body)
    return desk


def test_a_vehicle_history_is_paged_newest_first_each_entry_once(told: Desk) -> None:
    found: list[tuple[int, str]] = []
    asked: dict[str, int] = {}
    while True:
        page = told.get(f"/vins/{VIN}/history", limit=2, **asked).json()
        assert len(page["entries"]) <= 2
        found = [(entry["seq"], entry["state"]) for entry in page["entries"]] + found
        if page["before"] is None:
            break
        asked = {"before": page["before"]}
    assert found == list(zip(SEQS, ["delivered", "delivered", "pending", "pending", "pending"], strict=True))


def test_triggers_of_a_request_are_paged_with_the_states_of_their_entries(told: Desk) -> None:
    page = told.get(f"/batches/{REQUEST_ID}", limit=3).json()
    rest = told.get(f"/batches/{REQUEST_ID}", limit=3, before=page["before"]).json()
    counted = told.get(f"/batches/{REQUEST_ID}", entries=0).json()

    assert [(batch["seq"], batch["vehicles"], batch["states"]) for batch in page["batches"]] == [
        (SEQS[1], 2, {"delivered": 1, "pending": 1}),
        (SEQS[2], 2, {"pending": 2}),
        (SEQS[3], 2, {"pending": 2}),
    ]
    assert [batch["seq"] for batch in rest["batches"]] == [SEQS[0]]
    assert rest["before"] is None
    assert [batch["states"] for batch in counted["batches"]][1:3] == [{"delivered": 1, "open": 1}, {"open": 2}]
    assert told.get("/batches/task_of_nobody").json() == {"request_id": "task_of_nobody", "batches": [], "before": None}


def test_data_is_returned_with_its_metadata_and_unchanged_bytes(told: Desk) -> None:
    facts, payload = told.get(f"/data/{DATA_ID}").json(), told.get(f"/data/{DATA_ID}/payload")

    assert (facts["size_bytes"], facts["sha1"], facts["times_seen"]) == (len(PAYLOAD), hashlib.sha1(PAYLOAD).hexdigest(), 1)
    assert (payload.content, payload.headers["content-type"]) == (PAYLOAD, "application/octet-stream")
    for missing in (told.get("/data/data_of_nobody"), told.get("/data/data_of_nobody/payload")):
        assert missing.status_code == 404
        assert "nothing is known of data data_of_nobody" in missing.json()["detail"]


def test_the_lake_half_is_returned_as_stored(told: Desk) -> None:
    since = datetime(2026, 1, 1, tzinfo=UTC).isoformat()

    entries = told.get("/lake/entries", vin=VIN, since=since).json()
    triggers = told.get("/lake/triggers", request_id=REQUEST_ID, since=since, limit=1).json()

    assert [(entry["seq"], entry["state"]) for entry in entries["entries"]] == [
        (seq, "delivered" if seq in SEQS[:2] else "pending") for seq in SEQS[:4]
    ]
    assert [batch["seq"] for batch in triggers["batches"]] == triggers["told"] == [SEQS[3]]
    assert triggers["before"] == SEQS[3]
    assert {entry["vin"] for entry in triggers["entries"]} == {VIN, "HISTORY-2"}


def test_the_console_shows_a_vehicle_page_by_page(told: Desk) -> None:
    def page(*more: str) -> tuple[list[int], int | None]:
        command = [sys.executable, "-m", "manifold.console", "vin", "show", VIN, "--json", "--limit", "2", *more]
        env = {**os.environ, **environment(told.settings)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, cwd=ROOT)
        answer = json.loads(done.stdout)
        return [entry["seq"] for entry in answer["entries"]], answer["before"]

    whole = [entry["seq"] for entry in told.get(f"/vins/{VIN}/history").json()["entries"]]
    shown, before = page()
    while before is not None:
        older, before = page("--before", str(before))
        assert len(older) <= 2
        shown = older + shown
    assert len(whole) > 4
    assert shown == whole


@pytest.mark.parametrize("words", [("vin", "show", VIN), ("batch", "show", REQUEST_ID)], ids=" ".join)
def test_the_console_calls_the_api_and_loads_neither_lake_archive_nor_redis(told: Desk, words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "manifold.console", *words, "--json"],
        env={**os.environ, **environment(told.settings)},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not loaded & {"pyiceberg", "pyarrow", "redis"}
    assert str(SEQS[0]) in done.stdout
    assert "delivered" in done.stdout
