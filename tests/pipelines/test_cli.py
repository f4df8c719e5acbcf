"""Exit status and result of a failed job say whether it may be retried."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from redis.exceptions import ConnectionError as RedisAway

from manifold.contracts.errors import ManifoldError, OutcomeUnknown, Permanent, Retryable, SettingsError
from pipelines import cli
from pipelines.stages.ingest import discover

AGAIN = {
    "Redis is away": (RedisAway("refused"), cli.TRY_AGAIN),
    "retryable": (Retryable("later"), cli.TRY_AGAIN),
    "its outcome is unknown": (OutcomeUnknown("discover"), cli.TRY_AGAIN),
    "any other of ours": (ManifoldError("that"), cli.TRY_AGAIN),
    "unforeseen": (RuntimeError("out of memory"), cli.UNFORESEEN),
    "unforeseen, of the storage": (OSError(28, "no space left on device"), cli.UNFORESEEN),
}
NEVER = {"permanent": Permanent("wrong"), "a wrong setting": SettingsError("MANIFOLD_X is wrong")}


@pytest.fixture(autouse=True)
def _keep_the_log_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "configure_logging", lambda *_, **__: None)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Exception], tuple[int, dict[str, object]]]:
    """Exit status and result of a job that raises `exc`."""

    def run(exc: Exception) -> tuple[int, dict[str, object]]:
        def stage(*_: object) -> str:
            raise exc

        monkeypatch.setenv("MANIFOLD_HOME", str(tmp_path))
        monkeypatch.setitem(cli.STAGES, "discover", replace(discover, run=stage))
        file = tmp_path / "result.json"
        status = cli.main(["discover", "--result", str(file)])
        return status, json.loads(file.read_text())

    return run


@pytest.mark.parametrize(("exc", "status"), AGAIN.values(), ids=[*AGAIN])
def test_a_transient_error_asks_for_a_retry(
    ended: Callable[[Exception], tuple[int, dict[str, object]]], exc: Exception, status: int
) -> None:
    seen, result = ended(exc)

    assert seen == status
    assert result["again"] is True
    assert str(exc) in str(result["error"])


@pytest.mark.parametrize("exc", NEVER.values(), ids=[*NEVER])
def test_a_permanent_error_has_its_own_exit_status(
    ended: Callable[[Exception], tuple[int, dict[str, object]]], exc: Exception
) -> None:
    seen, result = ended(exc)

    assert seen == cli.PERMANENT
    assert cli.PERMANENT not in {0, 1, 2}, "Python and the shell reserve these"
    assert (result["again"], result["error"]) == (False, str(exc))


def test_an_unexpected_error_is_shown_with_its_traceback(
    ended: Callable[[Exception], tuple[int, dict[str, object]]], capsys: pytest.CaptureFixture[str]
) -> None:
    ended(RuntimeError("odd"))

    errors = capsys.readouterr().err
    assert "Traceback" in errors
    assert errors.splitlines()[-1] == "unforeseen: RuntimeError: odd; doing it again is safe"


@pytest.fixture(params=[429, 500, 503])
def busy_catalog(request: pytest.FixtureRequest) -> Iterator[str]:
    """A REST catalog that reports overload with this status; yields its URL."""

    class Busy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"error": {"message": "slow down", "type": "Busy", "code": request.param}}).encode()
            self.send_response(request.param)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Busy) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_busy_rest_catalog_is_retried(
    busy_catalog: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"HOME": tmp_path, "CATALOG_TYPE": "rest", "CATALOG_URI": busy_catalog, "CATALOG_WAIT_SECONDS": "0"}
    for name, value in given.items():
        monkeypatch.setenv(f"MANIFOLD_{name}", str(value))

    assert cli.main(["discover", "--no-flush"]) == cli.TRY_AGAIN
    assert busy_catalog in capsys.readouterr().err
