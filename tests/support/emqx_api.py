"""The part of EMQX's REST API that bans clients, over HTTP on loopback, with the replies of EMQX 5.8.

Source: `apps/emqx_management/src/emqx_mgmt_api_banned.erl`: 200 with the ban, 400 ALREADY_EXISTS with the former one as text in
`message`, 204 and 404 NOT_FOUND for DELETE; a wrong key is answered 401 BAD_API_KEY_OR_SECRET.
"""

import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

KEY, SECRET = "manifold", "of-tests"
_LOGIN = f"Basic {b64encode(f'{KEY}:{SECRET}'.encode()).decode()}"
_BANNED = "/api/v5/banned"


@dataclass(slots=True)
class EmqxApi:
    """An API at `url`. `bans` holds its bans by client id; `requests` the requests received."""

    url: str = ""
    bans: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        """The settings that name it."""
        return {"MANIFOLD_EMQX_API_URL": self.url, "MANIFOLD_EMQX_API_KEY": KEY, "MANIFOLD_EMQX_API_SECRET": SECRET}


@contextmanager
def emqx_api() -> Iterator[EmqxApi]:
    """An API without bans."""
    api = EmqxApi()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(api))
    api.url = f"http://127.0.0.1:{server.server_port}/api/v5"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(api: EmqxApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Suppress request logging."""

        def do_POST(self) -> None:
            row = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not self._is_known():
                return
            if self.path != _BANNED:
                self._answer(404, {"code": "NOT_FOUND", "message": "Request Path Not Found"})
            elif former := api.bans.get(row["who"]):
                self._answer(400, {"code": "ALREADY_EXISTS", "message": json.dumps(former)})
            else:
                api.bans[row["who"]] = {
                    "by": "mgmt_api",
                    "reason": "",
                    "at": "2026-11-26T12:00:00+00:00",
                    "until": "infinity",
                } | row
                self._answer(200, api.bans[row["who"]])

        def do_DELETE(self) -> None:
            if not self._is_known():
                return
            who = unquote(self.path.removeprefix(f"{_BANNED}/clientid/"))
            if api.bans.pop(who, None):
                self._answer(204, None)
            else:
                self._answer(404, {"code": "NOT_FOUND", "message": f"clientid: {who} not found"})

        def _is_known(self) -> bool:
            api.requests.append(f"{self.command} {self.path}")
            if self.headers["Authorization"] == _LOGIN:
                return True
            self._answer(401, {"code": "BAD_API_KEY_OR_SECRET", "message": "Check api_key/api_secret"})
            return False

        def _answer(self, status: int, document: object) -> None:
            body = b"" if document is None else json.dumps(document).encode()
            self.send_response(status)
            if document is not None:
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
