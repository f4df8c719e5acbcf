"""Dead letters over the door's HTTP: each message, why it was refused, and how the door would judge it now. Read only.

The door serves this because only it has the secrets needed to check signatures. Letters being read are invisible to other
clients, so one page is built at a time.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from aiohttp import web

from manifold.contracts.errors import message_of
from manifold.settings import Settings
from manifold.signals._session import SESSION_ERRORS
from manifold.signals.dead_letters import DeadLetter, DeadLetters, open_dead_letters

PAGE_SIZE, MAX_PAGE_SIZE = 100, 1000  # letters per page: default and maximum
MAX_BYTES = 64 << 20  # body bytes read for one page; RabbitMQ sends every body to the door
TIMEOUT_S = 15.0
PATH = "/dead-letters"


def dead_letter_routes(settings: Settings) -> list[web.RouteDef]:
    """Return the routes `GET /dead-letters` (query: `count`, `code`) and `GET /dead-letters/{place}`, which includes the body."""
    one_at_a_time = asyncio.Lock()

    async def ls(request: web.Request) -> web.Response:
        """List the oldest letters, up to `count`, of one `code` if given; `whole` is false if more may follow."""
        asked, code = request.query.get("count", ""), request.query.get("code", "")
        count = min(int(asked), MAX_PAGE_SIZE) if asked.isascii() and asked.isdigit() else PAGE_SIZE
        found, whole = list[dict[str, Any]](), True
        async with one_at_a_time, asyncio.timeout(TIMEOUT_S), open_dead_letters(settings) as letters:
            async for letter in _oldest_first(letters):
                # None: the read budget (MAX_BYTES) is used up
                if letter is None or len(found) == count:
                    whole = False
                    break
                if not code or letter.code == code:
                    found.append(_to_json(letters, letter))
        return web.json_response({"dead_letters": found, "whole": whole})

    async def show(request: web.Request) -> web.Response:
        place = int(request.match_info["place"])
        async with one_at_a_time, asyncio.timeout(TIMEOUT_S), open_dead_letters(settings) as letters:
            async for letter in _oldest_first(letters):
                if letter is None:
                    break
                if letter.place == place:
                    return web.json_response(_to_json(letters, letter) | {"body": letter.body.decode("utf-8", "replace")})
        return web.json_response({"reason": f"there is no dead letter {place}"}, status=404)

    return [web.get(PATH, _unavailable_as_503(ls)), web.get(PATH + "/{place:[0-9]{1,6}}", _unavailable_as_503(show))]


async def _oldest_first(letters: DeadLetters) -> AsyncIterator[DeadLetter | None]:
    """Yield each letter with its place, one in memory at a time; yield None and stop once `MAX_BYTES` were read."""
    place, size = 0, 0
    while found := await letters.take_oldest(1):
        place, size = place + 1, size + len(found[0].body)
        if size > MAX_BYTES:
            yield None
            return
        yield replace(found[0], place=place)


def _to_json(letters: DeadLetters, letter: DeadLetter) -> dict[str, Any]:
    return letter.to_json() | {"would_be": letters.verdict_now(letter)}


def _unavailable_as_503(handler: Any) -> Any:
    """Wrap a handler to answer 503 if RabbitMQ is unavailable."""

    async def answer(request: web.Request) -> web.Response:
        try:
            made: web.Response = await handler(request)
        except SESSION_ERRORS as exc:
            return web.json_response({"reason": f"RabbitMQ cannot be asked: {message_of(exc)}"}, status=503)
        return made

    return answer
