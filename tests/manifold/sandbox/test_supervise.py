"""The embedded platform, up and down, on free ports in its own folder; Airflow has its own tests."""

import fcntl
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import redis
from pydantic import SecretStr

from manifold.contracts import keys
from manifold.contracts.errors import Permanent, Retryable
from manifold.sandbox.platform import airflow
from manifold.sandbox.platform.processes import Record
from manifold.sandbox.platform.programs import command, environment, programs
from manifold.sandbox.platform.supervise import Addresses, Status, down, status, up
from manifold.sandbox.platform.supervisord import HomeLayout, configuration
from manifold.settings import Settings
from tests.support.platforms import PORTS
from tests.support.servers import free_port, listens, wait_until

UP_S = 90.0
ABSENT = ("airflow", "rabbitmq", "epmd", "signals")  # not needed by these platforms
KINDS = {"broker", "tap", "redis", "recorder", "dispatcher", "campaigner", "airflow", "api", "rabbitmq", "epmd", "signals"}
# Longer than a socket path may be: supervisor and broker must use another place.
LONG = "a-home-with-a-name-that-is-quite-long-" * 3


def settings_for(home: Path) -> Settings:
    return Settings(
        home=home,
        with_airflow=False,
        with_signals=False,
        mqtt_port=free_port(),
        broker_port=free_port(),
        redis_port=free_port(),
        recorder_port=free_port(),
        tap_port=free_port(),
        dispatcher_port=free_port(),
        airflow_port=free_port(),
        api_port=free_port(),
        campaigner_port=free_port(),
    )


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    """Settings of a stopped platform, which is stopped again after the test."""
    made = settings_for(tmp_path / LONG)
    yield made
    down(made)


def pids(now: Status) -> dict[str, list[int]]:
    return {kind: list(found) for kind, found in now.processes.items()}


def all_pids(now: Status) -> list[int]:
    return [pid for found in now.processes.values() for pid in found]


def runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_status_without_a_platform_says_so(settings: Settings) -> None:
    now = status(settings)

    assert not now.healthy
    assert not now.running
    assert pids(now) == {kind: [] for kind in KINDS}
    assert now.queues == "unknown"
    assert not settings.home.exists()


def test_down_without_a_platform_does_nothing(settings: Settings) -> None:
    assert down(settings) is False
    assert not settings.home.exists()


def test_a_port_in_use_stops_up_before_anything_starts(settings: Settings) -> None:
    named = rf"port {settings.redis_port} is in use by .*MANIFOLD_REDIS_PORT="
    with socket.create_server(("127.0.0.1", settings.redis_port)), pytest.raises(Permanent, match=named):
        up(settings)
    assert not status(settings).running
    assert not listens(settings.broker_port)


def test_a_home_that_no_url_can_hold_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Permanent, match=r"home='.*/my home' has ' ' in it.*MANIFOLD_HOME="):
        up(settings_for(tmp_path / "my home"))


def test_two_concurrent_starts_are_refused(settings: Settings) -> None:
    place = HomeLayout(settings.home)
    place.run.mkdir(parents=True)
    with (place.run / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for verb in (up, down):
            with pytest.raises(Retryable, match="is at work"):
                verb(settings)


def test_children_get_every_setting_and_no_other() -> None:
    made = Settings(home=Path("/somewhere"), direct_enqueue=False, redis_url="redis://:secret@elsewhere:1/0")
    handed = environment(made)

    ours = {name.removeprefix("MANIFOLD_").lower() for name in handed if name.startswith("MANIFOLD_")}
    assert ours == set(Settings.model_fields)
    assert (handed["MANIFOLD_HOME"], handed["MANIFOLD_DIRECT_ENQUEUE"]) == ("/somewhere", "false")
    assert handed["MANIFOLD_REDIS_URL"] == "redis://:secret@elsewhere:1/0"
    assert "/usr/sbin" in handed["PATH"].split(os.pathsep)


def test_external_servers_are_not_started() -> None:
    made = Settings(
        mqtt_url="mqtt://emqx:1883", redis_url="redis://redis:6379/0", dispatchers=2, with_airflow=False, with_signals=False
    )

    assert [program.name for program in programs(made)] == ["recorder", "dispatcher-0", "dispatcher-1", "campaigner", "api"]


def test_no_secret_is_printed_or_written(tmp_path: Path) -> None:
    made = Settings(home=tmp_path, redis_url="redis://:secret@elsewhere:1/0", mqtt_password="hidden")
    place = HomeLayout(tmp_path)
    place.run.mkdir()
    place.save_settings(made)

    assert Addresses.of(made).redis == "redis://:***@elsewhere:1/0"
    written = configuration(place, made, programs(made)) + place.settings_file.read_text()
    assert "secret@" not in written
    assert "hidden" not in written


def test_beyond_loopback_nothing_starts_without_a_token(settings: Settings) -> None:
    with pytest.raises(Permanent, match=r"MANIFOLD_HOST='0\.0\.0\.0' is not loopback.*MANIFOLD_HTTP_TOKEN"):
        up(settings.model_copy(update={"host": "0.0.0.0"}))
    assert not HomeLayout(settings.home).run.exists()


def test_servers_without_authentication_always_stay_on_loopback(settings: Settings) -> None:
    wide = settings.model_copy(update={"host": "192.0.2.1", "with_airflow": True})
    by_kind = {program.kind: program for program in programs(wide)}
    options = command(by_kind["redis"], wide)

    assert options[options.index("--bind") + 1] == "127.0.0.1"
    assert airflow.environment(wide, {})["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert (wide.redis, airflow.url(wide)) == (
        f"redis://127.0.0.1:{wide.redis_port}/0",
        f"http://127.0.0.1:{wide.airflow_port}",
    )


def _accepts(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


@pytest.mark.slow
def test_a_fresh_home_starts_healthy_with_tables_and_loaded_queues(platform: Settings) -> None:
    printed = status(platform).to_json()

    assert printed["healthy"] is True
    assert printed["mqtt"] == f"mqtt://127.0.0.1:{platform.mqtt_port}"
    assert printed["redis"] == f"redis://127.0.0.1:{platform.redis_port}/0"
    assert printed["catalog"] == {
        "name": "manifold",
        "type": "sql",
        "uri": f"sqlite:///{platform.home}/lake/catalog.db",
        "warehouse": f"file://{platform.home}/lake/warehouse",
    }
    assert printed["archive"] == f"file://{platform.home}/archive"
    assert printed["airflow"] == f"http://127.0.0.1:{platform.airflow_port}"
    assert printed["reports"] == f"{platform.home}/reports"
    assert printed["api"] == f"http://127.0.0.1:{platform.api_port}"
    assert {kind: len(found) for kind, found in printed["processes"].items()} == {kind: int(kind not in ABSENT) for kind in KINDS}
    assert printed["queues"] == "loaded"
    assert all(health["healthy"] and health["state"] == "RUNNING" for health in printed["health"].values())
    assert (platform.home / "lake" / "catalog.db").exists()
    assert {file.name for file in (platform.home / "logs").iterdir()} >= {
        "recorder.log",
        "dispatcher-0.log",
        "redis.log",
        "tap.log",
    }


@pytest.mark.slow
def test_up_on_a_running_platform_says_so_and_starts_nothing(platform: Settings) -> None:
    before = pids(status(platform))
    told: list[tuple[str, str]] = []

    addresses = up(platform, progress=lambda name, word: told.append((name, word)), within_s=UP_S)

    assert told[0] == ("platform", "is already up")
    assert addresses == Addresses.of(platform)
    assert pids(status(platform)) == before


@pytest.mark.slow
def test_up_with_other_settings_than_the_running_platform_names_them(platform: Settings) -> None:
    other = platform.model_copy(update={"tap_port": free_port()})

    with pytest.raises(Permanent, match=rf"up with tap_port={platform.tap_port}, not {other.tap_port}"):
        up(other)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["broker", "tap", "redis", "recorder", "dispatcher", "campaigner", "api"])
def test_a_killed_process_is_restarted_and_the_platform_recovers(platform: Settings, kind: str) -> None:
    [before] = status(platform).processes[kind]

    os.kill(before, signal.SIGKILL)

    wait_until(lambda: status(platform).processes[kind] not in ([], [before]), within_s=UP_S, what=f"a new {kind}")
    wait_until(lambda: status(platform).healthy, within_s=UP_S, what=f"healthy after the death of the {kind}")


@pytest.mark.slow
def test_without_the_loaded_marker_status_asks_for_a_rebuild(platform: Settings) -> None:
    with redis.Redis.from_url(platform.redis) as client:
        marker = client.get(keys.LOADED)
        client.delete(keys.LOADED)
        try:
            now = status(platform)
            assert (now.queues, now.healthy) == ("rebuild needed", False)
        finally:
            client.set(keys.LOADED, marker)
    wait_until(lambda: status(platform).healthy, within_s=UP_S)


@pytest.mark.slow
def test_a_platform_goes_up_and_down_and_keeps_its_state(settings: Settings) -> None:
    """Twice; its services are reachable beyond loopback, with a token; at last its supervisor is killed."""
    wide = settings.model_copy(update={"host": "0.0.0.0", "http_token": SecretStr("t0ken")})
    told: set[str] = set()
    up(wide, not_waiting_for=("dispatcher",), progress=lambda name, _: told.add(name), within_s=UP_S)
    assert told == {"platform", "broker", "tap", "redis", "recorder", "campaigner", "api"}
    assert status(wide).processes["dispatcher"] != []
    up(wide, progress=lambda name, _: told.add(name), within_s=UP_S)
    assert "dispatcher-0" in told
    assert_open_beyond_loopback(wide)
    first = all_pids(status(wide))
    with redis.Redis.from_url(wide.redis) as client:
        client.set("kept", "yes")

    assert down(wide) is True
    assert not any(runs(pid) for pid in first)
    assert not any(listens(port.number) for program in programs(wide) for port in program.ports)
    assert not status(wide).running

    up(wide, within_s=UP_S)
    assert status(wide).healthy
    with redis.Redis.from_url(wide.redis) as client:
        assert client.get("kept") == b"yes"

    supervisor = HomeLayout(wide.home).supervisor()
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    wait_until(lambda: supervisor.process() is None)
    orphans = all_pids(status(wide))
    assert len(orphans) == 7
    assert down(wide) is True
    assert not any(runs(pid) for pid in orphans)
    assert down(wide) is False


def assert_open_beyond_loopback(wide: Settings) -> None:
    """All of them but Redis, to whoever has the token."""
    now = status(wide)
    elsewhere = "127.0.0.2"  # another loopback address of this machine
    assert now.healthy
    assert now.checks["recorder"].details["direct_enqueue"] == "on"  # shown with the token
    open_there = {name for name in PORTS if _accepts(elsewhere, getattr(wide, name))}
    assert open_there == {"mqtt_port", "recorder_port", "tap_port", "dispatcher_port", "campaigner_port", "api_port"}
    assert httpx.get(f"http://{elsewhere}:{wide.recorder_port}/metrics").status_code == 401


def test_down_does_not_touch_a_process_that_reused_our_pid(settings: Settings) -> None:
    place = HomeLayout(settings.home)
    place.run.mkdir(parents=True)
    mine = Record.of_this_process()
    Record(mine.pid, mine.born - 60).write(place.record_file("redis"))

    assert down(settings) is False  # without ending this test


@pytest.mark.slow
def test_a_server_that_cannot_start_is_named_with_its_log_and_all_is_stopped(settings: Settings) -> None:
    damaged = settings.home / "redis" / "appendonlydir"
    damaged.mkdir(parents=True)
    (damaged / "appendonly.aof.manifest").write_text("this is no manifest\n")

    with pytest.raises(Permanent, match=r"(?s)redis does not stay up.*redis\.log.*Invalid AOF manifest"):
        up(settings, within_s=UP_S)

    assert not status(settings).running
    assert not any(listens(port.number) for program in programs(settings) for port in program.ports)
