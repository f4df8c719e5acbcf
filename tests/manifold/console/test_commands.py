"""The `manifold` command: output, JSON, errors on stderr, exit status."""

import asyncio
import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from manifold.console._app import COMMANDS
from manifold.console._watch import RATES
from manifold.sandbox.fleet import Fleet, vins
from manifold.sandbox.platform.programs import environment
from manifold.settings import Settings
from tests.support.console import ask, manifold
from tests.support.servers import ROOT, wait_until


def test_settings_are_printed_with_their_source_and_secrets_masked() -> None:
    done = manifold("settings", "--json", env={"MANIFOLD_NODE": "7", "MANIFOLD_MQTT_PASSWORD": "hunter2"})

    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["node"] | {"meaning": ""} == {
        "name": "node",
        "variable": "MANIFOLD_NODE",
        "value": 7,
        "default": 0,
        "source": "MANIFOLD_NODE",
        "meaning": "",
    }
    assert rows["mqtt_password"]["value"] == "********"
    assert "hunter2" not in done.stdout
    assert all(row["meaning"] for row in rows.values())


def test_help_has_each_command_in_one_line_and_fits_a_screen() -> None:
    lines = manifold("--help").stdout.splitlines()

    named = [line.split()[0] for line in lines if re.match(r"  \w+ +[A-Z]", line)]
    assert named == [command.name for command in COMMANDS]
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


def test_the_command_alone_prints_its_help_and_fails() -> None:
    alone = manifold()
    assert (alone.returncode, alone.stdout) == (2, manifold("--help").stdout)


@pytest.mark.parametrize("words", [["--help"], ["quarantine", "--help"], ["vin", "show", "V\u00dc"]])
def test_a_terminal_that_lacks_a_character_gets_a_replacement(tmp_path: Path, words: list[str]) -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "MANIFOLD_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "manifold.console", *words], env=env, cwd=ROOT, capture_output=True, check=False, timeout=60
    )

    assert b"Traceback" not in done.stderr
    assert b"UnicodeEncodeError" not in done.stderr


@pytest.mark.parametrize(
    "module",
    [
        "manifold.console settings",
        "manifold.recorder",
        "dispatcher",
        "manifold.sandbox.tap",
        "manifold.api",
        "pipelines populate",
    ],
)
def test_an_invalid_setting_stops_every_process_with_name_value_and_remedy(module: str) -> None:
    command = [sys.executable, "-m", *module.split()]
    done = subprocess.run(
        command, env={**os.environ, "MANIFOLD_REDIS_PORT": "many"}, capture_output=True, text=True, check=False, cwd=ROOT
    )

    assert done.returncode != 0
    assert "MANIFOLD_REDIS_PORT='many': input should be a valid integer" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_status_without_a_platform_is_json_and_unhealthy(tmp_path: Path) -> None:
    done = manifold(
        "status", "--json", env={"MANIFOLD_HOME": str(tmp_path), "MANIFOLD_AIRFLOW_PORT": "1", "MANIFOLD_REDIS_PORT": "2"}
    )

    status = json.loads(done.stdout)
    assert done.returncode == 1
    assert status["healthy"] is False
    of_signals = {"rabbitmq", "epmd", "signals"}
    assert (
        set(status["processes"])
        == {"broker", "tap", "redis", "recorder", "dispatcher", "campaigner", "airflow", "api"} | of_signals
    )
    assert status["amqp"] == "amqp://127.0.0.1:5680"
    assert status["secrets"] == f"{tmp_path}/secrets"
    assert not any(status["processes"].values())


def test_status_shows_no_address_of_external_services(tmp_path: Path) -> None:
    nowhere = {"MANIFOLD_HOME": str(tmp_path), "MANIFOLD_AIRFLOW_PORT": "1", "MANIFOLD_REDIS_PORT": "2"}

    whole = manifold("status", env=nowhere).stdout
    bare = manifold("status", env=nowhere | {"MANIFOLD_WITH_AIRFLOW": "false", "MANIFOLD_WITH_SIGNALS": "false"}).stdout

    assert "Airflow  " in whole
    assert [word for word in ("Airflow", "log-in", "AMQP") if word in bare] == []
    assert "Redis  " in bare


@pytest.mark.slow
def test_status_has_the_documented_keys(platform: Settings) -> None:
    status = ask(platform, "status")

    assert status["healthy"] is True
    assert status["mqtt"] == f"mqtt://127.0.0.1:{platform.mqtt_port}"
    assert status["redis"] == f"redis://127.0.0.1:{platform.redis_port}/0"
    assert set(status["catalog"]) == {"name", "type", "uri", "warehouse"}
    assert status["archive"] == f"file://{platform.home}/archive"
    assert len(status["processes"]["recorder"]) == 1


@pytest.mark.slow
def test_a_sent_batch_can_be_shown_before_any_ingest(platform: Settings, tmp_path: Path) -> None:
    vin, request_id = f"ASK-{uuid.uuid4().hex[:8]}", f"task_ask_{uuid.uuid4().hex[:8]}"
    payload = tmp_path / "payload"
    payload.write_bytes(uuid.uuid4().bytes)

    sent = ask(platform, "send", vin, "--data", str(payload), "--request-id", request_id)

    assert [message["status"] for message in sent] == ["recorded", "recorded"]
    shown = ask(platform, "vin", "show", vin)
    (entry,) = shown["entries"]
    assert shown["vin"] == vin
    assert set(entry) >= {"seq", "request_id", "data_id", "state", "accepted_at", "dispatched_at", "acknowledged_at", "attempts"}
    assert (entry["seq"], entry["request_id"], entry["state"]) == (sent[1]["seq"], request_id, "pending")
    (batch,) = ask(platform, "batch", "show", request_id)["batches"]
    assert (batch["seq"], batch["vehicles"], batch["states"]) == (entry["seq"], 1, {"pending": 1})


@pytest.mark.slow
def test_an_entry_without_its_data_is_parked_when_its_turn_comes(platform: Settings) -> None:
    vin = vins(1, seed=4711)[0]

    async def go_online() -> None:
        async with Fleet(platform, [vin]) as fleet:
            await fleet.connect()
            ask(platform, "send", vin, "--data-id", f"never-{uuid.uuid4().hex[:8]}")
            wait_until(
                lambda: ask(platform, "vin", "show", vin)["entries"][-1]["state"] == "parked", what="the entry to be parked"
            )

    asyncio.run(go_online())


@pytest.mark.slow
def test_a_batch_is_cancelled_for_some_vehicles_and_then_for_all(platform: Settings) -> None:
    run = uuid.uuid4().hex[:8]
    request_id, away = f"task_cancel_{run}", [f"AWAY-{run}-{n}" for n in range(3)]
    ask(platform, "send", *away, "--data-id", f"never-{run}", "--request-id", request_id)

    one = ask(platform, "batch", "cancel", request_id, "--vin", away[0])
    rest = [ask(platform, "batch", "cancel", request_id) for _ in (1, 2)]
    stranger = manifold("batch", "cancel", request_id, "--vin", "STRANGER", env=environment(platform))

    assert one["entries"] == {"cancelled": 1}
    assert [again["entries"] for again in rest] == [{"cancelled": 3}] * 2, "a repetition prints the same"
    assert [entry["state"] for entry in ask(platform, "vin", "show", away[1])["entries"]] == ["cancelled"]
    (batch,) = ask(platform, "batch", "show", request_id)["batches"]
    assert batch["states"] == {"cancelled": 3}
    assert stranger.returncode == 1
    assert "VIN 'STRANGER' is in no batch of" in stranger.stderr


@pytest.mark.slow
def test_queues_and_fleet_come_from_statistics_and_a_queue_is_read_live(platform: Settings) -> None:
    run = uuid.uuid4().hex[:8]
    vin, request_ids = f"LONG-{run}", [f"task_{run}_{n}" for n in range(3)]
    seqs = [ask(platform, "send", vin, "--data-id", "d", "--request-id", request_id)[0]["seq"] for request_id in request_ids]

    fleet = ask(platform, "fleet", "--fresh")
    top = ask(platform, "queue", "top", "--count", "20")
    peeked = ask(platform, "queue", "peek", vin, "--count", "2")
    pending = ask(platform, "vin", "pending", vin)
    history = ask(platform, "vin", "history", vin)

    assert fleet["pending"] >= 3
    assert fleet["oldest_at"] is not None
    assert 0 <= top["queue_stats"]["age_seconds"] < 60
    assert {"vin": vin, "entries": 3} in [{name: queue[name] for name in ("vin", "entries")} for queue in top["longest"]]
    assert (peeked["length"], [entry["seq"] for entry in peeked["entries"]]) == (3, seqs[:2])
    assert [(entry["request_id"], entry["state"]) for entry in pending["entries"]] == [(r, "pending") for r in request_ids]
    assert history["entries"] == []


@pytest.mark.slow
def test_a_running_platform_can_be_watched(platform: Settings) -> None:
    done = manifold("watch", "--count", "1", "--json", env=environment(platform))

    (line,) = done.stdout.splitlines()
    sample = json.loads(line)
    assert set(sample) == {"at", "per_second", "waiting", "queue_stats"}
    assert set(sample["per_second"]) == set(RATES)
    assert "delivered a second" in manifold("watch", "--count", "1", env=environment(platform)).stdout


def test_watch_shows_receipts_blocked_by_a_bad_response_topic() -> None:
    assert RATES["receipts withheld"] == ("manifold_recorder_receipts_total", {"result": "foreign_topic"})


@pytest.mark.parametrize(("rate", "counter"), [(what, name) for what, (name, _) in RATES.items()])
def test_every_watched_counter_is_documented(rate: str, counter: str) -> None:
    assert f"| `{counter}` | counter |" in (ROOT / "docs" / "reference" / "metrics.md").read_text(), rate


@pytest.mark.slow
def test_a_repeated_trigger_is_a_duplicate_and_a_bad_one_is_refused(platform: Settings, tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text(json.dumps({"ids": ["TWICE"], "request_id": f"task_{uuid.uuid4().hex[:8]}", "data_id": "d"}))
    bad.write_text('{"ids": ["A B"], "request_id": "r", "data_id": "d"}')

    (first,) = ask(platform, "send", "--trigger", str(good))
    (again,) = ask(platform, "send", "--trigger", str(good))
    refused = manifold("send", "--trigger", str(bad), env=environment(platform))

    assert (again["status"], again["duplicate_of"]) == ("duplicate", first["seq"])
    assert refused.returncode == 1
    assert 'ids[0] "A B" must be 1 to 64 printable ASCII characters' in " ".join(refused.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["send"], "there is nothing to send", id="nothing to send"),
        pytest.param(["send", "VIN-1", "--trigger", "/dev/null"], "VIN-1 has no data to get", id="a VIN without data"),
        pytest.param(["send", "V", "--data", "/no/such/file"], "cannot read /no/such/file", id="a missing file"),
        pytest.param(["vin", "show", "A B"], "VIN 'A B' must be 1 to 64", id="no VIN"),
        pytest.param(["batch", "show", "a/b"], "request_id 'a/b' must be 1 to 128", id="no request_id"),
        pytest.param(["queue", "peek", "A B"], "VIN 'A B' must be 1 to 64", id="no VIN to peek at"),
        pytest.param(["batch", "cancel", "a/b"], "request_id 'a/b' must be 1 to 128", id="no request_id to cancel"),
        pytest.param(
            ["ingest", "--from", "2026-01-02", "--to", "2026-01-01"], "is not an interval", id="an interval that ends early"
        ),
        pytest.param(["report"], "there is no report in", id="no report"),
        pytest.param(
            ["vin", "show", "V", "--before", "1" + "0" * 30],
            "less than or equal to 9223372036854775807",
            id="a seq that no one can have",
        ),
        pytest.param(
            ["batch", "cancel", "r", "--before", "1" + "0" * 30],
            "less than or equal to 9223372036854775807",
            id="the same of a batch",
        ),
        pytest.param(["quarantine", "drop", "1" + "0" * 30], "no refused message has seq 1000", id="the same of a refusal"),
        pytest.param(["quarantine", "show", "9" * 30], "no refused message has seq 9999", id="the same to look at"),
        pytest.param(
            ["lake", "check", "--days", "1e308"], "is not a number of days since the year 1", id="more days than there are"
        ),
        pytest.param(["lake", "check", "--days", "inf"], "is not a number of days since the year 1", id="endless days"),
        pytest.param(["ecq", "write", "c", "k", "--data", "/no\\[/b]"], "cannot read /no\\[/b]", id="a name like markup"),
    ],
)
def test_a_user_error_is_one_line_with_a_remedy(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = manifold(*arguments, env={"MANIFOLD_HOME": str(tmp_path)})

    assert done.returncode != 0
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_missing_platform_is_reported_with_a_remedy(tmp_path: Path) -> None:
    nowhere = {"MANIFOLD_HOME": str(tmp_path)} | {f"MANIFOLD_{name}_PORT": "2" for name in ("REDIS", "RECORDER", "API")}

    done = manifold("vin", "show", "V", env=nowhere)

    assert done.returncode == 1
    assert "is the platform up? See `manifold status`" in done.stderr


def test_the_doctor_names_a_remedy_for_everything_missing(tmp_path: Path) -> None:
    done = manifold("doctor", "--json", env={"MANIFOLD_HOME": str(tmp_path), "MANIFOLD_REDIS_PORT": "2"})

    findings = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert done.returncode == 1
    assert findings["python"]["passed"]
    assert not findings["redis"]["passed"]
    assert all(finding["remedy"] for finding in findings.values() if not finding["passed"])


def test_airflow_is_not_probed_before_the_first_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "manifold.console", "airflow", "dags", "list"]
    done = subprocess.run(
        command, env={**os.environ, "MANIFOLD_HOME": str(tmp_path)}, capture_output=True, text=True, check=False, cwd=ROOT
    )

    assert (done.returncode, list(tmp_path.iterdir())) == (1, [])
    assert "run `manifold up` first" in " ".join(done.stderr.split())
