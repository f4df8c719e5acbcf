"""The service at the API's address may be another program."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from manifold.history.from_service import ask_service
from manifold.settings import Settings


@contextmanager
def answering(body: bytes) -> Iterator[Settings]:
    """Settings whose API answers every request with this body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Suppress request logging."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield Settings(api_port=server.server_port)
        finally:
            server.shutdown()


@pytest.mark.parametrize("body", [b"{}", b"[]", b"null", b'"ingested"', b"<html>", b"\xff"])
def test_a_server_that_answers_otherwise_is_not_the_api(body: bytes) -> None:
    with answering(body) as settings:
        assert ask_service(settings, "lake/entries", {"vin": "V1"}, "ingested") is None


def test_an_answer_of_the_api_is_used() -> None:
    with answering(b'{"entries": [], "ingested": []}') as settings:
        assert ask_service(settings, "lake/entries", {"vin": "V1"}, "ingested") == {"entries": [], "ingested": []}
