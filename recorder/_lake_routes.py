"""What the recorder's HTTP tells of the lake: this process has it open, and opening it takes a console longer than an answer."""

from datetime import datetime

from aiohttp import web

from contracts.seq import MAX_SEQ
from history.entry import Bounds
from recorder._lake import Lake

MOST_TRIGGERS, MOST_ROWS = 1000, 50_000_000  # of one page, whatever is asked for


def lake_routes(lake: Lake) -> list[web.RouteDef]:
    """`/lives?vin=…&since=…` and `/batches?request_id=…&since=…[&limit=…&entries=…&rows=…&before=…&since_seq=…]`."""

    async def lives(request: web.Request) -> web.Response:
        try:
            since, vin = datetime.fromisoformat(request.query["since"]), request.query["vin"]
        except (KeyError, ValueError) as exc:
            return _wrong(f"since (ISO 8601) and vin must be given: {exc!r}")
        return _answer(lake, await lake.lives(since, vin))

    async def batches(request: web.Request) -> web.Response:
        try:
            since, request_id = datetime.fromisoformat(request.query["since"]), request.query["request_id"]
            bounds = _bounds({name: int(request.query[name]) for name in _MOST if name in request.query})
        except (KeyError, ValueError) as exc:
            return _wrong(
                f"since (ISO 8601) and request_id must be given, and every bound be a whole number in its range: {exc!r}"
            )
        return _answer(lake, await lake.batches(since, request_id, bounds))

    return [web.get("/lives", lives), web.get("/batches", batches)]


_MOST = {"limit": MOST_TRIGGERS, "entries": 1 << 30, "rows": MOST_ROWS, "before": MAX_SEQ, "since_seq": MAX_SEQ}


def _bounds(asked: dict[str, int]) -> Bounds:
    for name, value in asked.items():
        if value < (1 if name == "limit" else 0):
            raise ValueError(f"{name}={value} is too small")
    given = {name: min(value, _MOST[name]) for name, value in asked.items()}
    if "since_seq" in given:
        given["since"] = given.pop("since_seq")
    return Bounds(**given)


def _wrong(problem: str) -> web.Response:
    return web.json_response({"problem": problem}, status=400)


def _answer(lake: Lake, found: bytes | None) -> web.Response:
    if found is None:
        return web.json_response({"problem": lake.problem or "too many entries"}, status=503)
    return web.Response(body=found, content_type="application/json")
