"""Closes a service's open segments on request, so that an ingest sees everything accepted so far."""

import asyncio

import structlog
from aiohttp import web

from manifold.archive.journal import Journal
from manifold.archive.segment_writer import SegmentWriter

FLUSH_WAIT_S = 60.0

log = structlog.get_logger(__name__)


async def flush_journal(journal: Journal, writer: SegmentWriter, node: int) -> web.Response:
    """Close the open segments; replies with their paths once they are in the archive, or 503 if some are late."""
    journal.rotate()
    files = list(journal.files)
    try:
        async with asyncio.timeout(FLUSH_WAIT_S):
            await asyncio.gather(*(file.sealed.wait() for file in files))
    except TimeoutError:
        log.warning("open segments not written in time", problem=writer.problem)
    segments = [path for file in files for path in file.segments]
    left = [file.path.name for file in files if not file.sealed.is_set()]
    answer = {"segments": segments, "left_in_journal": left, "problem": writer.problem, "node": node}
    return web.json_response(answer, status=503 if left else 200)
