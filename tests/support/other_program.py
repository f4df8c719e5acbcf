"""A program that is not Manifold's, on a port where a service of Manifold should be."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(slots=True)
class OtherProgram:
    """A program that answers every HTTP request with this status and body."""

    port: int = 0
    status: int = 200
    body: bytes = b""


@contextmanager
def other_program(body: bytes = b"") -> Iterator[OtherProgram]:
    """A running one."""
    program = OtherProgram(body=body)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(program.status)
            self.send_header("Content-Length", str(len(program.body)))
            self.end_headers()
            self.wfile.write(program.body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Suppress request logging."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        program.port = server.server_port
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield program
        finally:
            server.shutdown()
