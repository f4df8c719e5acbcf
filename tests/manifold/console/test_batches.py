"""`manifold batch`: paging over a reused request_id, and cancelling a huge batch in slices."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from manifold.api._lake_half import MAX_ENTRIES
from manifold.console._ask import _command_to_continue
from manifold.console._cancel import Progress
from manifold.contracts import keys
from manifold.contracts.seq import datetime_of, seq_of
from manifold.contracts.tables import IDS, OUTCOMES
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.sandbox.platform.programs import environment
from manifold.settings import Settings
from tests.support.console import ask, manifold
from tests.support.lake_rows import append
from tests.support.servers import ROOT, Server

MANY = MAX_ENTRIES + 15_000  # vehicles of one trigger, too many for the API to list


@pytest.fixture
def redis(platform: Settings) -> Iterator[Redis]:
    with Redis(port=platform.redis_port) as client:
        yield client


def in_lake(settings: Settings, request_id: str, vins: list[str], ago_s: int) -> int:
    """Store an old trigger in the lake only; return its seq."""
    seq = seq_of(time.time_ns() // 1_000_000 - ago_s * 1000, 1, 0)
    row = {"ts": datetime_of(seq), "request_id": request_id, "seq": seq, "data_id": "d", "applied": False}
    catalog = open_catalog(settings)
    ensure_tables(catalog)
    append(catalog, IDS, [{"vin": vin, **row} for vin in vins])
    return seq


@pytest.mark.slow
def test_a_page_has_the_newest_triggers_of_lake_and_archive_and_a_cursor(platform: Settings) -> None:
    run = uuid.uuid4().hex[:8]
    request_id, vins = f"task_page_{run}", [f"P-{run}-{n}" for n in range(3)]
    old = [in_lake(platform, request_id, vins, ago_s) for ago_s in (400 * 86400, 900, 600)]
    ended = {"vin": vins[0], "seq": old[1], "outcome": "delivered", "accepted_at": datetime_of(old[1])}
    append(open_catalog(platform), OUTCOMES, [ended | {"ended_at": datetime_of(old[2])}])
    sent = [ask(platform, "send", *vins, "--data-id", f"d-{n}", "--request-id", request_id)[-1]["seq"] for n in range(2)]

    page = ask(platform, "batch", "show", request_id, "--limit", "3")
    rest = ask(platform, "batch", "show", request_id, "--limit", "3", "--before", str(page["before"]))
    counted = ask(platform, "batch", "show", request_id, "--entries", "0")
    said = manifold("batch", "show", request_id, "--limit", "3", env=environment(platform)).stdout

    assert [(batch["seq"], batch["states"]) for batch in page["batches"]] == [
        (old[2], {"pending": 3}),
        (sent[0], {"pending": 3}),
        (sent[1], {"pending": 3}),
    ]
    assert [(b["seq"], b["states"]) for b in rest["batches"]] == [
        (old[0], {"expired": 3}),
        (old[1], {"delivered": 1, "pending": 2}),
    ]
    assert (page["before"], rest["before"]) == (old[2], None)
    assert [batch["states"] for batch in counted["batches"]][:2] == [{"open": 3}, {"delivered": 1, "open": 2}]
    assert f"older triggers: manifold batch show {request_id} --before {old[2]} --limit 3" in said


@pytest.mark.slow
def test_cancelling_a_huge_batch_resumes_where_it_was_interrupted(platform: Settings, redis: Redis) -> None:
    run = uuid.uuid4().hex[:8]
    request_id, vins = f"task_huge_{run}", [f"H-{run}-{n}" for n in range(MANY)]
    older, newer = (in_lake(platform, request_id, vins, ago_s) for ago_s in (120, 60))
    ended = {"vin": vins[0], "outcome": "delivered", "ended_at": datetime_of(newer)}
    append(open_catalog(platform), OUTCOMES, [ended | {"seq": seq, "accepted_at": datetime_of(seq)} for seq in (older, newer)])

    def is_cancelled(vin: str, seq: int) -> bool:
        return redis.zscore(keys.done(vin), seq) is not None

    command = [sys.executable, "-m", "manifold.console", "batch", "cancel", request_id]
    env = {**os.environ, **environment(platform)}
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    while not is_cancelled(vins[1], newer):  # without a pause: some slices follow, and none takes long
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130, said
    assert f"to continue: manifold batch cancel {request_id}\n" in said
    assert not is_cancelled(vins[-1], older), "an interrupted cancellation stops"

    again: Any = json.loads(subprocess.check_output([*command, "--json"], env=env, cwd=ROOT))
    assert again == {
        "request_id": request_id,
        "triggers": 2,
        "entries": {"cancelled": 2 * (MANY - 1), "delivered": 2},
        "before": None,
    }
    assert is_cancelled(vins[-1], older)
    assert not is_cancelled(vins[0], older), "ended entries are left alone"
    one = ask(platform, "batch", "cancel", request_id, "--limit", "1", "--vin", vins[0], "--vin", vins[1])
    assert (one["entries"], one["before"]) == ({"cancelled": 1, "delivered": 1}, newer)
    left = manifold("batch", "cancel", request_id, "--limit", "1", "--vin", vins[0], env=environment(platform)).stdout
    assert f"older triggers are left: manifold batch cancel {request_id} --vin {vins[0]} --before {newer} --limit 1\n" in left


NOTHING_DONE, ONE_DONE, ALL_DONE = Progress(0), Progress(1, before=50), Progress(3, before=None)


@pytest.mark.parametrize(
    ("vins", "before", "limit", "progress", "options"),
    [
        pytest.param([], None, None, NOTHING_DONE, "", id="nothing is done"),
        pytest.param([], None, 3, ONE_DONE, " --before 50 --limit 2", id="some of the triggers are done"),
        pytest.param([], 90, 1, ONE_DONE, " --before 90 --limit 1", id="all triggers within the limit are done"),
        pytest.param([], 90, 5, ALL_DONE, " --before 90 --limit 5", id="all triggers are done"),
        pytest.param(["V"], 90, 3, ONE_DONE, " --vin V --before 90 --limit 3", id="only triggers are read yet"),
    ],
)
def test_an_interrupted_cancellation_continues_within_its_options(
    vins: list[str], before: int | None, limit: int | None, progress: Progress, options: str
) -> None:
    assert _command_to_continue("task", vins, before, limit, progress) == f"manifold batch cancel task{options}"


def test_the_command_to_continue_a_cancellation_keeps_its_options(redis_server: Server, tmp_path: Path) -> None:
    """The command is interrupted while it waits for a recorder that stays silent."""
    with socket.create_server(("127.0.0.1", 0)) as recorder:
        port = recorder.getsockname()[1]
        settings = Settings(home=tmp_path, redis_port=redis_server.port, recorder_port=port, with_signals=False)
        options = ["--vin", "V-1", "--vin", "V-$2", "--limit", "3", "--before", "77"]
        process = subprocess.Popen(
            [sys.executable, "-m", "manifold.console", "batch", "cancel", "task", *options],
            env={**os.environ, **environment(settings)},
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        connection, _ = recorder.accept()
        with connection:
            process.send_signal(signal.SIGINT)
            _, said = process.communicate()

    assert process.returncode == 130, said
    assert "to continue: manifold batch cancel task --vin V-1 --vin 'V-$2' --before 77 --limit 3\n" in said
