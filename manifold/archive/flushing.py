"""Closes the open segments of an ingress service on request, so that an ingest sees all messages accepted so far."""

import asyncio

import structlog
from aiohttp import web

from manifold.archive.journal import Journal
from manifold.archive.segment_writer import SegmentWriter

FLUSH_TIMEOUT_S = 60.0

log = structlog.get_logger(__name__)


async def flush_journal(journal: Journal, writer: SegmentWriter, node: int) -> web.Response:
    """Close the open segments, and wait until they are in the archive.

    The response has the paths of the segments. Its status is 503 if not all of them are in the archive within `FLUSH_TIMEOUT_S`.
    """
    journal.rotate()
    files = list(journal.files)
    try:
        async with asyncio.timeout(FLUSH_TIMEOUT_S):
            await asyncio.gather(*(file.sealed.wait() for file in files))
    except TimeoutError:
        log.warning("closed segments not in the archive in time", node=node, timeout_s=FLUSH_TIMEOUT_S, reason=writer.problem)
    segments = [path for file in files for path in file.segments]
    unsealed = [file.path.name for file in files if not file.sealed.is_set()]
    body = {"segments": segments, "left_in_journal": unsealed, "problem": writer.problem, "node": node}
    return web.json_response(body, status=503 if unsealed else 200)
