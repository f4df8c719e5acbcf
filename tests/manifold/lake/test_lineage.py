"""Telling a catalog of lineage: in order, in the background; whatever it does, nobody waits for it, and memory is bounded."""

import subprocess
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from manifold.lake import lineage
from manifold.lake.lineage import emit, settle
from manifold.settings import Settings
from tests.support.lineage import backend, says, telling, told_in
from tests.support.servers import ROOT, free_port, wait_until

EVENTS = [{"n": n} for n in range(3)]


@pytest.fixture(autouse=True)
def _heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's configuration of logging, which other tests load into this process, disables the loggers that are there."""
    monkeypatch.setattr(lineage.log, "disabled", False)


def test_a_file_gets_a_line_for_each_event_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "new" / "events.jsonl"
    settings = telling(Settings(home=tmp_path), f"file://{file}")
    assert emit(settings, EVENTS[:2])
    assert emit(settings, EVENTS[2:])
    assert told_in(file) == EVENTS


def test_an_address_gets_each_event_with_the_token(tmp_path: Path) -> None:
    with backend(says(201)) as catalog:
        assert emit(telling(Settings(home=tmp_path, lineage_token="t0ken"), catalog.url), EVENTS)
        assert settle(60)
        assert (catalog.got, set(catalog.tokens)) == (EVENTS, {"Bearer t0ken"})


def test_nobody_waits_for_a_catalog_that_hangs_and_it_is_told_when_it_goes_on(tmp_path: Path) -> None:
    goes_on = threading.Event()

    def hang(request: BaseHTTPRequestHandler) -> None:
        goes_on.wait()
        says(200)(request)

    with backend(hang) as catalog:
        settings = telling(Settings(home=tmp_path), catalog.url)
        assert [emit(settings, [event]) for event in EVENTS] == [True] * 3, "it has answered none of them"
        assert not settle(0.01)
        goes_on.set()
        assert settle(60)
        assert catalog.got == EVENTS


def test_what_waits_for_a_catalog_that_hangs_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lineage, "MAX_WAITING", 2)
    goes_on = threading.Event()
    with backend(lambda request: (goes_on.wait(), says(200)(request))[1]) as catalog:
        settings = telling(Settings(home=tmp_path), catalog.url)
        assert emit(settings, EVENTS[:1])
        wait_until(lambda: catalog.got, what="the first event to be under way")
        assert [emit(settings, [event]) for event in (*EVENTS[1:], *EVENTS)] == [True, True, False, False, False]
        goes_on.set()
        assert settle(60)
        assert catalog.got == EVENTS
    assert "2 others wait" in caplog.text


def test_an_error_is_said_once_and_the_next_event_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    statuses = iter([500, 500, 200])
    with backend(lambda request: says(next(statuses))(request)) as catalog:
        settings = telling(Settings(home=tmp_path), catalog.url.replace("//", "//somebody:secret@"))
        for event in EVENTS:
            emit(settings, [event])
        assert settle(60)
        assert catalog.got == EVENTS
    assert caplog.text.count("MANIFOLD_LINEAGE_URL answers HTTPStatusError") == 1
    assert "secret" not in caplog.text


def test_an_answer_without_end_is_not_read(tmp_path: Path) -> None:
    def flood(request: BaseHTTPRequestHandler) -> None:
        says(200)(request)
        with suppress(OSError):  # nobody listens
            while True:
                request.wfile.write(b"x" * 65536)

    with backend(flood) as catalog:
        emit(telling(Settings(home=tmp_path), catalog.url), EVENTS)
        assert settle(60)
        assert catalog.got == EVENTS


def test_a_catalog_that_is_away_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    emit(telling(Settings(home=tmp_path), f"http://127.0.0.1:{free_port()}/api/v1/lineage"), EVENTS)
    assert settle(60)
    assert "MANIFOLD_LINEAGE_URL answers ConnectError" in caplog.text


def test_a_file_that_cannot_be_written_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    emit(telling(Settings(home=tmp_path), f"file://{tmp_path}"), EVENTS)
    assert settle(60)
    assert "MANIFOLD_LINEAGE_URL answers IsADirectoryError" in caplog.text


def test_an_event_without_bound_is_not_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "events.jsonl"
    assert not emit(telling(Settings(home=tmp_path), f"file://{file}"), [{"why": "x" * lineage.MAX_BYTES}])
    assert told_in(file) == []
    assert "an event has more than" in caplog.text


def test_a_process_ends_though_the_catalog_hangs_and_has_told_a_file_before_it_ends(tmp_path: Path) -> None:
    file, goes_on = tmp_path / "events.jsonl", threading.Event()
    script = """
import sys
from pydantic import SecretStr
from manifold.lake import lineage
from manifold.settings import Settings
lineage.TIMEOUT_S = 0.2
for url in sys.argv[2:]:
    lineage.emit(Settings(home=sys.argv[1], lineage_url=SecretStr(url)), [{"n": 1}])
"""
    with backend(lambda _: (goes_on.wait(), None)[1]) as catalog:
        command = [sys.executable, "-c", script, str(tmp_path), f"file://{file}", catalog.url]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        goes_on.set()
    assert (done.returncode, told_in(file)) == (0, [{"n": 1}]), done.stderr
    assert "takes too long" in done.stderr


def test_a_forked_process_tells_what_is_its_own(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    script = """
import os, sys
from pydantic import SecretStr
from manifold.lake.lineage import emit, settle
from manifold.settings import Settings
settings = Settings(home=sys.argv[1], lineage_url=SecretStr(sys.argv[2]))
emit(settings, [{"n": 1}])
assert settle()
if (child := os.fork()) == 0:
    emit(settings, [{"n": 2}])
    os._exit(not settle(5))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    command = [sys.executable, "-c", script, str(tmp_path), f"file://{file}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, told_in(file)) == (0, [{"n": 1}, {"n": 2}]), done.stderr
