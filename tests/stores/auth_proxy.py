"""A proxy before a REST catalog that issues and requires tokens, knows warehouses by name, and vends credentials.

Everything else is passed on to the catalog.
"""

import json
import secrets
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qs, urlsplit

import httpx

from manifold.settings import Settings
from pipelines.spark.conf import S3_JAR
from tests.stores.places import WAREHOUSE as ROOT_OF_TABLES
from tests.stores.places import Deployed, settings_of, variables_of
from tests.stores.servers import REST_JARS, VERSITYGW, object_storage, require, rest_catalog
from tests.support.servers import Server

CLIENT_ID, CLIENT_SECRET, WAREHOUSE = "manifold", "client:secret", "fleet"
TOKENS, CONFIG, PREFIX = "/v1/oauth/tokens", "/v1/config", f"/v1/{WAREHOUSE}/"
DELEGATION, CLIENT = "X-Iceberg-Access-Delegation", "X-Client-Version"
VENDED = {f"header.{DELEGATION}": "vended-credentials"}
PASSED_ON = ("Content-Type", "Accept", CLIENT)
AnyProxy = TypeVar("AnyProxy", bound="AuthProxy")


class AuthProxy(ThreadingHTTPServer):
    """A proxy for the catalog at `behind`; delegated access gets the properties in `vended` with every table."""

    daemon_threads = True

    def __init__(self, behind: str, vended: Mapping[str, str]) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.vended = dict(vended)
        self.catalog = httpx.Client(base_url=behind, timeout=60)
        self.tokens: set[str] = set()
        self.served, self.refused = Counter[str](), 0  # by requesting engine

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def refusal(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> str:
        """Why such a request is refused; empty if it is admitted."""
        del method, target, body
        return "" if headers.get("Authorization", "").removeprefix("Bearer ") in self.tokens else "no valid token"

    def token(self) -> str:
        """A new token, valid until `revoke`."""
        token = secrets.token_urlsafe(24)
        self.tokens.add(token)
        return token

    def revoke(self) -> None:
        """Invalidate all issued tokens."""
        self.tokens.clear()


class _Request(BaseHTTPRequestHandler):
    server: AuthProxy
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urlsplit(self.path).path
        if path == TOKENS:
            self._give_token(parse_qs(body.decode()))
        elif refusal := self.server.refusal(self.command, self.path, dict(self.headers.items()), body):
            self.server.refused += 1
            self._answer(401, {"error": {"message": refusal, "type": "NotAuthorizedException", "code": 401}})
        elif path == CONFIG:
            self._configure(parse_qs(urlsplit(self.path).query))
        elif path.startswith(PREFIX):
            self._pass_on(body)
        else:
            self._answer(404, {"error": {"message": f"no such warehouse: {path}", "type": "NotFoundException", "code": 404}})

    do_GET = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815  # names given by the library

    def _give_token(self, form: Mapping[str, list[str]]) -> None:
        if (form.get("client_id"), form.get("client_secret")) != ([CLIENT_ID], [CLIENT_SECRET]):
            self._answer(401, {"error": "invalid_client", "error_description": "unknown client, or a wrong secret"})
            return
        issued = "urn:ietf:params:oauth:token-type:access_token"
        token = {"access_token": self.server.token(), "token_type": "bearer", "issued_token_type": issued, "expires_in": 3600}
        self._answer(200, token)

    def _configure(self, query: Mapping[str, list[str]]) -> None:
        if query.get("warehouse") != [WAREHOUSE]:
            self._answer(400, {"error": {"message": "no such warehouse", "type": "BadRequestException", "code": 400}})
            return
        self._answer(200, {"defaults": {}, "overrides": {"prefix": WAREHOUSE}})

    def _pass_on(self, body: bytes) -> None:
        headers = {name: self.headers[name] for name in PASSED_ON if name in self.headers}
        got = self.server.catalog.request(self.command, self.path.replace(PREFIX, "/v1/", 1), content=body, headers=headers)
        self.server.served[self.headers.get(CLIENT, "").split()[0]] += 1
        answer = got.json() if got.content else None
        if isinstance(answer, dict) and "metadata" in answer and self.headers.get(DELEGATION) == "vended-credentials":
            answer["config"] = answer.get("config", {}) | self.server.vended
        self._answer(got.status_code, answer)

    def _answer(self, status: int, answer: object) -> None:
        content = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Keep logs off standard error."""


@contextmanager
def before_a_catalog(kind: type[AnyProxy], folder: Path) -> Iterator[AnyProxy]:
    """An open proxy with a REST catalog and its object storage behind it."""
    require(VERSITYGW, REST_JARS, Settings().jars / S3_JAR)
    with object_storage(folder / "s3") as s3, rest_catalog(folder / "rest", ROOT_OF_TABLES, s3) as uri:
        proxy = kind(uri, s3.for_iceberg())
        thread = threading.Thread(target=proxy.serve_forever, name="auth-proxy")
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
            proxy.server_close()
            proxy.catalog.close()


def behind(proxy: AuthProxy, folder: Path, redis: Server, **properties: str) -> Deployed:
    """A lake whose settings know nothing of object storage; only the catalog does. The archive is a folder."""
    variables = variables_of(
        folder,
        redis,
        catalog_type="rest",
        catalog_uri=proxy.url,
        warehouse=WAREHOUSE,
        catalog_properties=json.dumps(properties | VENDED),
    )
    return Deployed(settings_of(variables), variables, folder)
