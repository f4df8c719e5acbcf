"""Lineage events: sent in order in the background; nothing blocks on the catalog, and memory is bounded."""

import subprocess
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from manifold.lake import lineage
from manifold.lake.lineage import emit, flush
from manifold.settings import Settings
from tests.support.lineage import backend, says, telling, told_in
from tests.support.servers import ROOT, free_port, wait_until

EVENTS = [{"n": n} for n in range(3)]


@pytest.fixture(autouse=True)
def _heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Re-enable loggers that Airflow's logging configuration, loaded by other tests, has disabled."""
    monkeypatch.setattr(lineage.log, "disabled", False)


def test_a_file_gets_one_line_per_event_in_order(tmp_path: Path) -> None:
    file = tmp_path / "new" / "events.jsonl"
    settings = telling(Settings(home=tmp_path), f"file://{file}")
    assert emit(settings, EVENTS[:2])
    assert emit(settings, EVENTS[2:])
    assert told_in(file) == EVENTS


def test_an_http_endpoint_gets_each_event_with_the_token(tmp_path: Path) -> None:
    with backend(says(201)) as catalog:
        assert emit(telling(Settings(home=tmp_path, lineage_token="t0ken"), catalog.url), EVENTS)
        assert flush(60)
        assert (catalog.got, set(catalog.tokens)) == (EVENTS, {"Bearer t0ken"})


def test_emitting_does_not_block_on_a_hanging_catalog_and_resumes_later(tmp_path: Path) -> None:
    goes_on = threading.Event()

    def hang(request: BaseHTTPRequestHandler) -> None:
        goes_on.wait()
        says(200)(request)

    with backend(hang) as catalog:
        settings = telling(Settings(home=tmp_path), catalog.url)
        assert [emit(settings, [event]) for event in EVENTS] == [True] * 3, "it has answered no request"
        assert not flush(0.01)
        goes_on.set()
        assert flush(60)
        assert catalog.got == EVENTS


def test_the_backlog_of_a_hanging_catalog_is_bounded(
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
        assert flush(60)
        assert catalog.got == EVENTS
    assert "2 earlier batches are still unsent" in caplog.text


def test_an_error_is_logged_once_and_the_next_event_is_sent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    statuses = iter([500, 500, 200])
    with backend(lambda request: says(next(statuses))(request)) as catalog:
        settings = telling(Settings(home=tmp_path), catalog.url.replace("//", "//somebody:secret@"))
        for event in EVENTS:
            emit(settings, [event])
        assert flush(60)
        assert catalog.got == EVENTS
    assert caplog.text.count("MANIFOLD_LINEAGE_URL answers HTTP 500") == 1
    assert "secret" not in caplog.text


def test_an_endless_response_is_not_read(tmp_path: Path) -> None:
    def flood(request: BaseHTTPRequestHandler) -> None:
        says(200)(request)
        with suppress(OSError):  # no listener
            while True:
                request.wfile.write(b"x" * 65536)

    with backend(flood) as catalog:
        emit(telling(Settings(home=tmp_path), catalog.url), EVENTS)
        assert flush(60)
        assert catalog.got == EVENTS


def test_an_unreachable_catalog_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    emit(telling(Settings(home=tmp_path), f"http://127.0.0.1:{free_port()}/api/v1/lineage"), EVENTS)
    assert flush(60)
    assert "MANIFOLD_LINEAGE_URL did not answer: ConnectError" in caplog.text


def test_an_unwritable_file_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    emit(telling(Settings(home=tmp_path), f"file://{tmp_path}"), EVENTS)
    assert flush(60)
    assert "MANIFOLD_LINEAGE_URL cannot be used: IsADirectoryError" in caplog.text


def test_an_oversized_event_is_not_sent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "events.jsonl"
    assert not emit(telling(Settings(home=tmp_path), f"file://{file}"), [{"why": "x" * lineage.MAX_BYTES}])
    assert told_in(file) == []
    assert "an event has more than" in caplog.text


def test_a_process_exits_despite_a_hanging_catalog_and_flushes_files_first(tmp_path: Path) -> None:
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
    assert "lineage events not sent in time (1 batches)" in done.stderr


def test_a_forked_process_sends_only_its_own_events(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    script = """
import os, sys
from pydantic import SecretStr
from manifold.lake.lineage import emit, flush
from manifold.settings import Settings
settings = Settings(home=sys.argv[1], lineage_url=SecretStr(sys.argv[2]))
emit(settings, [{"n": 1}])
assert flush()
if (child := os.fork()) == 0:
    emit(settings, [{"n": 2}])
    os._exit(not flush(5))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    command = [sys.executable, "-c", script, str(tmp_path), f"file://{file}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, told_in(file)) == (0, [{"n": 1}, {"n": 2}]), done.stderr
