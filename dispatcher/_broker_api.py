"""Sessions and banned clients of the broker, through EMQX's REST API.

Written from the documentation and the source of EMQX 5.8, and tested against a single-node EMQX 5.8.9.
"""

import json
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import aiohttp

from manifold.contracts.errors import Retryable
from manifold.runtime.tls import web_context
from manifold.settings import Settings

PAGE_SIZE = 1000  # sessions per request; the API allows 10,000
_TIMEOUT_S = 30
BANNED_BY = "manifold"  # the author of a ban, as EMQX lists it
_OK, _NO_CONTENT, _BAD_REQUEST, _NOT_FOUND = 200, 204, 400, 404
_REFUSED = (401, 403)


@dataclass(frozen=True, slots=True)
class Session:
    """A session of one client id, as the broker reports it. Instants are in Unix ms."""

    client_id: str
    connected: bool
    connected_at_ms: int  # when the last connection began
    created_at_ms: int  # when the session began; earlier than `connected_at_ms` if a connection resumed the session
    clean_start: bool
    expiry_s: int


def session_of(row: Mapping[str, Any]) -> Session:
    """Parse one row of `GET /clients`, or the reply to `GET /clients/<client id>`.

    Raises:
        ValueError: a field is missing or malformed; the text says which.
    """
    try:
        return Session(
            client_id=str(row["clientid"]),
            connected=row["connected"] is True,
            connected_at_ms=_unix_ms(row["connected_at"]),
            created_at_ms=_unix_ms(row["created_at"]),
            clean_start=row["clean_start"] is True,
            expiry_s=int(row["expiry_interval"]),
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise ValueError(f"not a client as EMQX describes one: {exc!r}") from exc


class BrokerApi:
    """A client of the API: `async with BrokerApi(settings) as api`. Over HTTPS it trusts the CAs in `tls_ca`.

    Raises:
        Retryable: from every method, if the API is unavailable, rejects the key, or returns an unexpected response.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings, self._url = settings, settings.emqx_api_url.rstrip("/")
        login = f"{settings.emqx_api_key}:{settings.emqx_api_secret.get_secret_value()}"
        self._headers = {"Authorization": f"Basic {b64encode(login.encode()).decode()}"}
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        try:
            ssl_context = web_context(self._settings, self._url)
        except OSError as exc:
            raise Retryable(f"tls_ca={self._settings.tls_ca!r} cannot be read ({exc}); is it being renewed?") from exc
        connector = aiohttp.TCPConnector(ssl=ssl_context or True)  # without HTTPS there is no context; True is the default
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        self._http = aiohttp.ClientSession(headers=self._headers, connector=connector, timeout=timeout)
        return self

    async def __aexit__(self, _t: type[BaseException] | None, _e: BaseException | None, _b: TracebackType | None) -> None:
        assert self._http is not None
        await self._http.close()

    async def sessions(self) -> AsyncIterator[Session]:
        """Yield all sessions, including those of disconnected clients.

        A session that moves from one page to another between two requests may be missing or be yielded twice.
        """
        page, has_next = 1, True
        while has_next:
            params = {"page": str(page), "limit": str(PAGE_SIZE)}
            _, answer = await self._request("GET", "/clients", (_OK,), params=params)
            try:
                rows, has_next = answer["data"], answer["meta"]["hasnext"] is True
                for row in rows:
                    yield session_of(row)
            except (KeyError, TypeError, ValueError) as exc:
                raise Retryable(f"{self._url}/clients returned an unexpected reply: {exc!r}") from exc
            page += 1

    async def session(self, client_id: str) -> Session | None:
        """Read the session of one client id; None if the broker has none."""
        path = f"/clients/{quote(client_id, safe='')}"
        status, answer = await self._request("GET", path, (_OK, _NOT_FOUND))
        if status == _NOT_FOUND or not answer:
            return None
        try:
            return session_of(answer)
        except ValueError as exc:
            raise Retryable(f"{self._url}/clients/{client_id}: {exc}") from exc

    async def ban(self, client_id: str, until: datetime) -> bool:
        """Ban this client id until the given time; returns whether the ban is new.

        A ban ends an open connection and refuses new connections. EMQX does not change an existing ban. So a ban that ends
        earlier is replaced, and a ban that ends later stays.
        """
        ban = {
            "as": "clientid",
            "who": client_id,
            "by": BANNED_BY,
            "reason": "revoked",
            "until": until.isoformat(timespec="seconds"),
        }
        status, answer = await self._request("POST", "/banned", (_OK, _BAD_REQUEST), json_body=ban)
        if status == _OK:
            return True
        if answer.get("code") != "ALREADY_EXISTS":
            raise self._refusal("POST", "/banned", status, answer)
        if _end_of_existing_ban(answer) >= until.replace(microsecond=0):  # a ban ends at a whole second
            return False
        await self.unban(client_id)
        status, answer = await self._request("POST", "/banned", (_OK, _BAD_REQUEST), json_body=ban)
        if status != _OK and answer.get("code") != "ALREADY_EXISTS":  # another replica may have banned the client since `unban`
            raise self._refusal("POST", "/banned", status, answer)
        return True

    async def unban(self, client_id: str) -> bool:
        """End the ban of this client id; returns whether there was one."""
        path = f"/banned/clientid/{quote(client_id, safe='')}"
        status, _ = await self._request("DELETE", path, (_NO_CONTENT, _NOT_FOUND))
        return status == _NO_CONTENT

    async def _request(
        self,
        method: str,
        path: str,
        expected: tuple[int, ...],
        *,
        params: Mapping[str, str] | None = None,
        json_body: object = None,
    ) -> tuple[int, dict[str, Any]]:
        """Send a request; returns the status, which is one of `expected`, and the JSON response, or {} if the body is empty."""
        assert self._http is not None
        try:
            async with self._http.request(method, f"{self._url}{path}", params=params, json=json_body) as answer:
                body = await answer.read()
                if answer.status in expected:
                    content = json.loads(body) if body else {}
                    if not isinstance(content, dict):
                        raise ValueError("not a JSON object")
                    return answer.status, content
                raise self._refusal(method, path, answer.status, _parse_refusal(body))
        except (aiohttp.ClientError, TimeoutError, ValueError) as exc:
            raise Retryable(f"{self._url}{path} cannot be read ({exc!r}); is emqx_api_url right?") from exc

    def _refusal(self, method: str, path: str, status: int, answer: Mapping[str, Any]) -> Retryable:
        """Build the error for a request that EMQX refused: what it replied, and which setting may be wrong."""
        details = f" {answer['code']}: {answer.get('message', '')}" if "code" in answer else ""
        remedy = "are emqx_api_key and emqx_api_secret right?" if status in _REFUSED else "is emqx_api_url that of an EMQX 5.8?"
        return Retryable(f"{self._url}{path} answers {method} with {status}{details}; {remedy}")


def _parse_refusal(body: bytes) -> dict[str, Any]:
    """Parse the body of a refusal; {} if it is not one of EMQX, but for example the page of a proxy."""
    try:
        content = json.loads(body)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _end_of_existing_ban(answer: Mapping[str, Any]) -> datetime:
    """Parse the end of the existing ban, which EMQX describes when it refuses a second one; datetime.max if there is no end.

    Raises:
        Retryable: the refusal has no end of a ban.
    """
    try:
        until = json.loads(answer["message"])["until"]
        return datetime.max.replace(tzinfo=UTC) if until == "infinity" else datetime.fromisoformat(until)
    except (KeyError, TypeError, ValueError) as exc:
        raise Retryable(f"EMQX reported an existing ban without its end time: {answer.get('message')!r}") from exc


def _unix_ms(rfc_3339: str) -> int:
    """Parse a time of EMQX, such as 2026-01-31T12:00:00.000+00:00."""
    instant = datetime.fromisoformat(rfc_3339)
    if instant.tzinfo is None:
        raise ValueError(f"{rfc_3339!r} names no time zone")
    return round(instant.timestamp() * 1000)
