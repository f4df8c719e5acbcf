"""Dead letters over the door's HTTP: each message, why it was refused, and how the door would judge it now. Read only.

The door serves these pages because only the door has the secrets that check signatures. While a page is built, RabbitMQ hides its
letters from all other clients, so the door builds one page at a time.
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
        """List the oldest letters: up to `count`, and with `code` only those with this code.

        Without a valid `count`, the page has up to `PAGE_SIZE` letters. `whole` is false if more may follow.
        """
        requested_count, code = request.query.get("count", ""), request.query.get("code", "")
        is_number = requested_count.isascii() and requested_count.isdigit()
        count = min(int(requested_count), MAX_PAGE_SIZE) if is_number else PAGE_SIZE
        page = list[dict[str, Any]]()
        is_complete = True
        async with one_at_a_time, asyncio.timeout(TIMEOUT_S), open_dead_letters(settings) as letters:
            async for letter, bytes_read in _oldest_first(letters):
                if bytes_read > MAX_BYTES or len(page) == count:
                    is_complete = False
                    break
                if not code or letter.code == code:
                    page.append(_to_json(letters, letter))
        return web.json_response({"dead_letters": page, "whole": is_complete})

    async def show(request: web.Request) -> web.Response:
        """Return one letter with its body, or 404 if there is none at this place within the first `MAX_BYTES`."""
        place = int(request.match_info["place"])
        async with one_at_a_time, asyncio.timeout(TIMEOUT_S), open_dead_letters(settings) as letters:
            async for letter, bytes_read in _oldest_first(letters):
                if bytes_read > MAX_BYTES:
                    break
                if letter.place == place:
                    return web.json_response(_to_json(letters, letter) | {"body": letter.body.decode("utf-8", "replace")})
        return web.json_response({"reason": f"there is no dead letter {place}"}, status=404)

    return [web.get(PATH, _unavailable_as_503(ls)), web.get(PATH + "/{place:[0-9]{1,6}}", _unavailable_as_503(show))]


async def _oldest_first(letters: DeadLetters) -> AsyncIterator[tuple[DeadLetter, int]]:
    """Yield each letter with its place, and the bytes of all bodies read so far; hold one letter in memory at a time."""
    place, bytes_read = 0, 0
    while taken := await letters.take_oldest(1):
        [letter] = taken
        place += 1
        bytes_read += len(letter.body)
        yield replace(letter, place=place), bytes_read


def _to_json(letters: DeadLetters, letter: DeadLetter) -> dict[str, Any]:
    """Return the JSON of a letter, with how the door would judge it now."""
    return letter.to_json() | {"would_be": letters.verdict_now(letter)}


def _unavailable_as_503(handler: Any) -> Any:
    """Wrap a handler to answer 503 if RabbitMQ is unavailable."""

    async def answer(request: web.Request) -> web.Response:
        try:
            response: web.Response = await handler(request)
        except SESSION_ERRORS as exc:
            return web.json_response({"reason": f"RabbitMQ cannot be asked: {message_of(exc)}"}, status=503)
        return response

    return answer
