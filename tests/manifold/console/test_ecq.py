"""`manifold ecq` on a running platform: write, list, rewind, and the longest queues."""

import asyncio
import json
import subprocess
import sys
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from manifold.console import _demo_ecq
from manifold.contracts.names import Owner
from manifold.messaging.publisher import Publisher
from manifold.sandbox.fleet import Behaviour, Fleet
from manifold.sandbox.platform.programs import environment
from manifold.settings import Settings
from tests.support.console import ask, manifold
from tests.support.servers import ROOT, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def client_id() -> str:
    return f"C-{uuid.uuid4().hex[:12]}"


def stands(queue: Any) -> list[tuple[str, int, str]]:
    return [(entry["key"], entry["size_bytes"], entry["state"]) for entry in queue["entries"]]


def test_a_written_message_is_listed_at_once_and_sent_again_after_a_rewind(
    platform: Settings, client_id: str, tmp_path: Path
) -> None:
    (tmp_path / "20").write_bytes(b"20")
    receipts = [
        ask(platform, "ecq", "write", client_id, key, "--data", str(tmp_path / "20")) for key in ("climate", "a/b", "climate")
    ]

    assert [(each["client_id"], each["key"], each["status"]) for each in receipts] == [
        (client_id, key, "recorded") for key in ("climate", "a/b", "climate")
    ]
    wait_until(lambda: len(ask(platform, "ecq", "show", client_id)["entries"]) == 2, what="the queue to have both messages")
    queue = ask(platform, "ecq", "show", client_id)
    assert list(queue) == ["client_id", "last_seq", "acked_seq", "acked_at", "entries"]
    assert [queue[name] for name in list(queue)[:4]] == [client_id, receipts[2]["seq"], None, None]
    assert stands(queue) == [("a/b", 2, "pending"), ("climate", 2, "pending")]
    assert [entry["seq"] for entry in queue["entries"]] == [receipts[1]["seq"], receipts[2]["seq"]]
    assert all(datetime.fromisoformat(entry["ts"]).utcoffset() is not None for entry in queue["entries"])
    plain = manifold("ecq", "show", client_id, env=environment(platform) | {"COLUMNS": "40"}).stdout
    assert all(str(each["seq"]) in plain for each in receipts[1:]), "identifiers are whole at any width"

    async def come() -> None:
        async with Fleet(platform, [Owner(client_id)], behaviour=Behaviour(compacted_queues=True)) as fleet:
            await fleet.connect()
            await fleet.wait_for(lambda fleet: len(fleet.acknowledged) == 2, 30)
            await asyncio.to_thread(_all_delivered, platform, client_id)
            rewound = await asyncio.to_thread(ask, platform, "ecq", "rewind", client_id, "--to", str(receipts[2]["seq"]))
            assert rewound["status"] == "recorded"
            await fleet.wait_for(lambda fleet: len(fleet.acknowledged) == 3, 30)
            await asyncio.to_thread(_rewind_over_http, platform, client_id)
            await fleet.wait_for(lambda fleet: len(fleet.acknowledged) == 5, 30)
            assert [message.key for message in fleet.received] == ["a/b", "climate", "climate", "a/b", "climate"]

    asyncio.run(come())


def _rewind_over_http(platform: Settings, client_id: str) -> None:
    answer = httpx.post(f"{platform.api}/api/v1/ecq/{client_id}/rewind", json={"to": "earliest"}, timeout=30)
    assert answer.status_code == 200, answer.text


def _all_delivered(platform: Settings, client_id: str) -> None:
    def delivered() -> bool:
        queue = ask(platform, "ecq", "show", client_id)
        return {entry["state"] for entry in queue["entries"]} == {"delivered"} and queue["acked_seq"] == queue["last_seq"]

    wait_until(delivered, what="both messages to be delivered")


def test_the_payload_may_come_from_stdin(platform: Settings, client_id: str) -> None:
    command = [sys.executable, "-m", "manifold.console", "ecq", "write", client_id, "k", "--data", "-", "--json"]
    done = subprocess.run(command, input=b"\0" * 77, env=environment(platform), capture_output=True, check=False, cwd=ROOT)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "recorded"
    wait_until(lambda: stands(ask(platform, "ecq", "show", client_id)) == [("k", 77, "pending")], what="the message")


def test_clients_with_the_most_pending_messages_are_listed(platform: Settings, client_id: str) -> None:
    async def write() -> None:
        async with Publisher(platform) as publisher:
            for n in range(7):
                await publisher.write(client_id, f"k{n}", b"")

    asyncio.run(write())
    wait_until(lambda: len(ask(platform, "ecq", "show", client_id)["entries"]) == 7, what="the queue to have all messages")

    top = ask(platform, "ecq", "top", "--fresh", "--count", "20")

    (mine,) = [queue for queue in top["longest"] if queue["client_id"] == client_id]
    assert (mine["pending"], mine["live"]) == (7, 7)
    assert top["queue_stats"]["ecq_pending"] >= 7
    fleet = ask(platform, "fleet", "--fresh")
    assert (fleet["ecq_live"] >= 7, fleet["ecq_oldest_at"] is not None) == (True, True)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["show", "w"], 'client id "w" is a level of the topics themselves'),
        (["show", "a/b"], 'client id "a/b" must be 1 to 64'),
        (["show", "sdv-recorder"], "is a service's"),
        (["write", "C", "a+b", "--data", "-"], 'key "a+b" contains +'),
        (["write", "C", "k" * 513, "--data", "-"], "of 513 bytes is over 512; choose a shorter one"),
        (["write", "C", "k", "--data", "/no/file"], "cannot read /no/file (No such file or directory); name a file that exists"),
        (
            ["rewind", "C", "--to", "yesterday"],
            '--to: "yesterday" is not a position to rewind to; send earliest, a seq, or an ISO 8601',
        ),
        (["rewind", "C", "--to", "2026-11-21"], "is not a position to rewind to"),
        (["rewind", "C", "--to", "-1"], "is not a position to rewind to"),
    ],
)
def test_an_invalid_message_is_refused_before_it_is_sent(line: list[str], message: str) -> None:
    command = [sys.executable, "-m", "manifold.console", "ecq", *line]
    done = subprocess.run(
        command, env={"MANIFOLD_MQTT_PORT": "1", "COLUMNS": "300"}, capture_output=True, text=True, input="", cwd=ROOT
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert message in " ".join(done.stderr.split())


def test_the_compacted_queue_stage_of_the_demo_succeeds(platform: Settings) -> None:
    run = f"{uuid.uuid4().int % 10**12}"

    async def play() -> _demo_ecq.Result:
        async with Publisher(platform) as publisher:
            return await _demo_ecq.play_ecq(platform, publisher, run)

    seen = asyncio.run(play())
    assert seen.recorded_writes == _demo_ecq.CLIENTS * _demo_ecq.WRITES
    assert (seen.correct_clients, seen.received_messages) == (_demo_ecq.CLIENTS, _demo_ecq.CLIENTS * _demo_ecq.KEYS)
