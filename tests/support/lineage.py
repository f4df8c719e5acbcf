"""Emitted lineage: events in a file, and a lineage catalog with configurable behaviour."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from manifold.lake.lineage import flush
from manifold.settings import Settings

Event = dict[str, Any]


def telling(settings: Settings, url: str, **more: object) -> Settings:
    """These settings with that lineage catalog."""
    return settings.model_copy(update={"lineage_url": SecretStr(url), **more})


def told_in(file: Path) -> list[Event]:
    """All events in the file, once all are sent."""
    assert flush(60)
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def runs_of(events: list[Event], job: str) -> list[list[Event]]:
    """The events of each run of a job, in order."""
    runs: dict[str, list[Event]] = {}
    for event in events:
        if event["job"]["name"] == f"manifold.{job}":
            runs.setdefault(event["run"]["runId"], []).append(event)
    return list(runs.values())


def names(datasets: list[Event]) -> list[str]:
    """The last part of each dataset's name."""
    return sorted(Path(each["name"]).name for each in datasets)


@dataclass
class Backend:
    """A lineage catalog on loopback."""

    url: str = ""
    got: list[Event] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)


@contextmanager
def backend(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[Backend]:
    """A catalog that stores its requests and then answers with `answer`; while that blocks, its clients wait."""
    seen = Backend()

    class Listener(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.tokens.append(self.headers["Authorization"])
            seen.got.append(json.loads(body))
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Listener) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        seen.url = f"http://127.0.0.1:{server.server_port}/api/v1/lineage"
        yield seen
        server.shutdown()


def says(status: int) -> Callable[[BaseHTTPRequestHandler], None]:
    """An answer with this status."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.end_headers()

    return answer
