"""`/quarantine` and `/lake/freshness`: the refused messages, and how far the lake is behind the archive."""

from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query
from pyiceberg.catalog import Catalog

from manifold.api._parameters import Limit
from manifold.api._sources import Sources
from manifold.api.models.lake import Freshness
from manifold.api.models.refusals import Quarantine, Refused
from manifold.contracts.envelope import Stream
from manifold.history.refused import Cursor, Refusal, RefusalFilter, page
from manifold.lake.freshness import oldest_not_in_lake

PAGE = 50
Since = Annotated[datetime | None, Query(description="received then or later; ISO 8601, UTC where it names no zone")]
Matching = Annotated[str, Query(max_length=200, description="only those whose reason holds this text, in any case")]
Settled = Annotated[bool, Query(description="also what was replayed or dropped")]
# The position of a message: when it was received in Unix microseconds (years 1653 to 5138), and its seq.
CURSOR = r"^(-[0-9]{1,16}|[0-9]{1,17})_-?[0-9]{1,19}$"
Before = Annotated[str | None, Query(pattern=CURSOR, description="as the page before said")]


def table_routes(sources: Sources) -> APIRouter:
    """Return the routes of quarantine and freshness."""
    router = APIRouter(tags=["lake"])

    @router.get("/quarantine")
    async def quarantine(
        stream: Annotated[Stream | None, Query(description="only of this stream")] = None,
        since: Since = None,
        matching: Matching = "",
        settled: Settled = False,
        limit: Limit = PAGE,
        before: Before = None,
    ) -> Quarantine:
        """Refused messages that are not settled, newest first, a page at a time."""
        if since is not None and since.tzinfo is None:
            since = since.replace(tzinfo=UTC)
        read = partial(
            page,
            selection=RefusalFilter(stream, since, matching, settled),
            limit=limit,
            before=None if before is None else _parse_cursor(before),
        )
        result = await sources.lake.ask(read)
        next_before = _cursor_of(result.refusals[-1]) if result.more else None
        refused = [Refused(**_without_payload(refusal)) for refusal in result.refusals]
        return Quarantine(refused=refused, total=result.total, before=next_before)

    @router.get("/lake/freshness")
    async def freshness() -> Freshness:
        """How far the lake is behind the archive: the age of the oldest segment of the last days that is not ingested."""
        now = datetime.now(UTC)

        def read(catalog: Catalog) -> datetime | None:
            return oldest_not_in_lake(catalog, sources.settings, now)

        oldest = await sources.lake.ask(read)
        age_s = max(0.0, (now - oldest).total_seconds()) if oldest else 0.0
        return Freshness(oldest_not_in_lake=oldest, age_seconds=age_s, late=age_s > sources.settings.lake_late_seconds)

    return router


def _without_payload(refusal: Refusal) -> dict[str, object]:
    return {name: value for name, value in asdict(refusal).items() if name != "payload"}


def _cursor_of(refusal: Refusal) -> str:
    """Return the position of a refused message as text: when it was received in Unix microseconds, and its seq."""
    return f"{round(refusal.received_at.timestamp() * 1_000_000)}_{refusal.seq}"


def _parse_cursor(cursor: str) -> Cursor:
    """Parse a position written by `_cursor_of`."""
    microseconds, seq = cursor.split("_")
    return datetime.fromtimestamp(int(microseconds) / 1_000_000, UTC), int(seq)
