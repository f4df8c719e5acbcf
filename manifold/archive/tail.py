"""Shows others what a journal holds that is not in the archive yet: the records that may be facts of campaigns, in seq order.

A reader names the last seq that it knows of this recorder. Records that have become segments since are not shown: `archived`
gives their last seq, and the reader finds them in the archive.
"""

import asyncio
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

import msgspec
from aiohttp import web

from manifold.archive.journal import Journal
from manifold.archive.records import JournalRecord, scan
from manifold.contracts.envelope import DUPLICATE_OF, Stream
from manifold.contracts.seq import wall_clock_ms
from manifold.contracts.topics import RELEASE

MAX_PAGE_BYTES = 8 << 20  # of the journal, read for one page; one record may be larger
MAX_PLACES = 16  # readers that are continued without reading a file again
ALWAYS = (Stream.CAMPAIGN, Stream.OUTCOME, Stream.ANSWER)


class Page(msgspec.Struct, array_like=True):
    """Records of one recorder, oldest first."""

    node: int
    at_ms: int  # the recorder's clock
    upto: int  # the greatest seq that the reader knows now
    archived: int  # everything up to this seq is in the archive
    more: bool  # ask again at once
    records: list[JournalRecord]


class _Place(NamedTuple):
    """A position in a file of the journal."""

    path: Path
    offset: int  # bytes


_encode = msgspec.msgpack.Encoder().encode
decode_page = msgspec.msgpack.Decoder(Page).decode


class Tail:
    """The end of a journal, for readers over HTTP."""

    def __init__(self, journal: Journal, node: int) -> None:
        self.recovered = False  # whether the journal is known to be complete; until then nothing is shown
        self._journal, self._node = journal, node
        self._places: OrderedDict[int, _Place] = OrderedDict()  # last seq of a page → where in the files the next page begins

    async def answer(self, request: web.Request) -> web.Response:
        """Answer `GET /journal?after=<seq>` with a `Page`; 503 until the journal is recovered."""
        if not self.recovered:
            return web.json_response({"problem": "the recorder has not recovered its journal yet"}, status=503)
        after = request.query.get("after", "0")
        if not after.isascii() or not after.isdigit():
            return web.json_response({"problem": f"after={after[:20]!r} must be a seq, or 0"}, status=400)
        return web.Response(body=_encode(await self.page(int(after))), content_type="application/msgpack")

    async def page(self, after: int) -> Page:
        """Return the records after `after`, from at most `MAX_PAGE_BYTES` of the journal; the reader continues with `upto`."""
        # Take both before the read. If a file becomes segments during it, this page ends there, and `archived` of the next page
        # covers the file.
        archived = self._journal.archived_seq
        files = [(file.path, file.size) for file in self._journal.files if file.last_seq > after]
        page = Page(node=self._node, at_ms=wall_clock_ms(), upto=after, archived=archived, more=False, records=[])
        place = await asyncio.to_thread(_read, files, after, self._places.get(after), page)
        if place is not None:
            self._places[page.upto] = place
            self._places.move_to_end(page.upto)
            if len(self._places) > MAX_PLACES:
                self._places.popitem(last=False)
        return page


def may_be_fact(stream: str, topic: str) -> bool:
    """Whether a message may be a fact of a campaign: an order, an outcome, an answer, or a release."""
    return stream in ALWAYS or topic == RELEASE


def _read(files: list[tuple[Path, int]], after: int, known: _Place | None, page: Page) -> _Place | None:
    """Add the records after `after` to `page`; return where the next page begins."""
    place, left = known, MAX_PAGE_BYTES
    for path, size in files:
        offset = known.offset if known is not None and known.path == path else 0
        length = MAX_PAGE_BYTES
        try:
            with path.open("rb") as file:
                while offset < size:
                    if left <= 0:
                        page.more = True
                        return place
                    file.seek(offset)
                    content = scan(file.read(min(length, size - offset)))
                    if not content.length:
                        if length >= size - offset:
                            break
                        length *= 2  # one record is longer
                        continue
                    offset, left = offset + content.length, left - content.length
                    place = _Place(path, offset)
                    for record in content.messages:
                        if record.seq > after:
                            page.upto = max(page.upto, record.seq)
                            if _is_accepted(record) and may_be_fact(record.stream, record.topic):
                                page.records.append(record)
        except FileNotFoundError:  # it has become segments: the next page says so
            return place
    return place


def _is_accepted(record: JournalRecord) -> bool:
    return record.refused_because is None and DUPLICATE_OF not in record.headers
