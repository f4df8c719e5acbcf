"""`manifold data show`, and pending entries past their retention shown as expired."""

import base64
import json
import os
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from manifold.contracts import keys
from manifold.contracts.messages import sha1_hex
from manifold.contracts.queue_names import ecq_queue
from manifold.contracts.seq import datetime_of, seq_of, wall_clock_ms
from manifold.queues import BlockingBatch, Policy
from manifold.queues.verbs.ecq import Append
from manifold.runtime.redis import connect
from manifold.sandbox.platform.programs import environment
from manifold.settings import Settings
from tests.support.console import manifold
from tests.support.servers import Server, free_port

PAYLOAD = b"\x00\xffbytes"


@pytest.fixture
def settings(tmp_path: Path, redis_server: Server) -> Settings:
    """An empty home over the shared Redis, without a recorder."""
    return Settings(
        home=tmp_path, redis_port=redis_server.port, recorder_port=free_port(), api_port=free_port(), retention_days=0.02
    )


def show(settings: Settings, *arguments: str) -> Any:
    done = manifold("data", "show", *arguments, "--json", env=environment(settings) | {"MANIFOLD_RETENTION_DAYS": "0.02"})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_data_known_only_to_the_queues_is_shown_and_written_to_a_file(settings: Settings, tmp_path: Path) -> None:
    data_id = f"queued-{uuid.uuid4().hex}"
    with connect(settings.redis) as redis:
        redis.set(keys.data(data_id), PAYLOAD, ex=60)

    shown = show(settings, data_id)
    plain = manifold("data", "show", data_id, "--output", str(tmp_path / "out"), env=environment(settings))

    assert (shown["sha1"], shown["first_seen_at"], shown["times_seen"]) == (sha1_hex(PAYLOAD), None, 0)
    assert base64.b64decode(shown["data"]) == (tmp_path / "out").read_bytes() == PAYLOAD
    assert sha1_hex(PAYLOAD) in plain.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(["x" * 129], "must be 1 to 128 printable", id="too long"),
        pytest.param(["a/b"], "data_id 'a/b' must be 1 to 128 printable", id="no data_id"),
        pytest.param(["x", "--output", "-", "--json"], "both write to stdout", id="two outputs on stdout"),
    ],
)
def test_data_that_cannot_be_shown_is_reported_with_a_remedy(settings: Settings, arguments: list[str], says: str) -> None:
    done = manifold("data", "show", *arguments, env=environment(settings))

    assert done.returncode != 0
    assert says in " ".join(done.stderr.split())
    assert os.linesep not in done.stderr.strip()


def test_an_entry_past_its_retention_is_shown_as_expired_unless_in_flight(settings: Settings) -> None:
    vin, now = f"OLD-{uuid.uuid4().hex[:8]}", datetime.now(UTC)
    old, flying, young = (seq_of(int((now - timedelta(minutes=m)).timestamp() * 1000), 0, 0) for m in (90, 60, 1))
    with connect(settings.redis) as redis:
        redis.zadd(keys.pending(vin), {str(seq): seq for seq in (old, flying, young)})
        redis.hset(keys.inflight(vin), mapping={"seq": flying, "published_at": 1, "attempts": 1, "deadline": 1})

    env = environment(settings) | {"MANIFOLD_RETENTION_DAYS": "0.02"}
    entries = json.loads(manifold("vin", "show", vin, "--json", env=env).stdout)["entries"]

    assert [(entry["seq"], entry["state"]) for entry in entries] == [(old, "expired"), (flying, "in flight"), (young, "pending")]
    assert datetime_of(old) < now - timedelta(days=0.02) < datetime_of(young)


def test_an_expired_compacted_message_is_shown_with_time_and_reason(settings: Settings) -> None:
    client_id, now_ms = f"OLD-{uuid.uuid4().hex[:8]}", wall_clock_ms()
    old, young = (seq_of(now_ms - days * 86_400_000, 0, 0) for days in (3, 1))
    with connect(settings.redis) as redis:
        redis.set(keys.LOADED, "now")
        batch = BlockingBatch(redis, Policy.of(settings))
        for seq, key in ((old, "a"), (young, "b")):
            batch.add(ecq_queue(client_id), Append(seq, key, b"x"), now_ms)
        batch.run()

    env = environment(settings) | {"MANIFOLD_ECQ_PENDING_RETENTION_DAYS": "2", "COLUMNS": "300"}
    first, second = json.loads(manifold("ecq", "show", client_id, "--json", env=env).stdout)["entries"]
    plain = manifold("ecq", "show", client_id, env=env).stdout

    assert (first["state"], first["reason"]) == ("expired", "its retention passed while it was pending")
    assert datetime.fromisoformat(first["ended_at"]) == datetime_of(old) + timedelta(days=2)
    assert (second["state"], list(second)) == ("pending", ["key", "seq", "ts", "size_bytes", "state"])
    assert first["reason"] in plain
    assert (
        first["reason"] not in manifold("ecq", "show", client_id, env=env | {"MANIFOLD_ECQ_PENDING_RETENTION_DAYS": "0"}).stdout
    )
