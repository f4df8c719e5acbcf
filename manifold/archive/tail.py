"""Lets other services read the records in a journal that may be facts of campaigns, before they are in the archive.

A reader passes the last seq of this recorder that it knows, and gets later records in seq order. Records that are in the archive
by now may be missing. The reader must read these from the archive: `Page.archived` is the last seq that the archive has.
"""

import asyncio
from collections import OrderedDict
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
from aiohttp import web

from manifold.archive.journal import Journal
from manifold.archive.records import JournalContent, JournalRecord, scan
from manifold.contracts.envelope import DUPLICATE_OF, Stream
from manifold.contracts.seq import wall_clock_ms
from manifold.contracts.topics import RELEASE

MAX_PAGE_BYTES = 8 << 20  # bytes of the journal that are read for a page, plus at most the rest of a longer record
MAX_POSITIONS = 16  # remembered positions; a reader whose position was forgotten makes the first journal file be read again
FACT_STREAMS = (Stream.CAMPAIGN, Stream.OUTCOME, Stream.ANSWER)  # streams all of whose messages may be facts of campaigns


class Page(msgspec.Struct, array_like=True):
    """Records of a recorder, oldest first."""

    node: int
    at_ms: int  # the recorder's clock when the page was made, in Unix ms
    upto: int  # the greatest seq that the reader knows after this page; to be passed in the next request
    archived: int  # all messages up to this seq are in the archive
    more: bool  # whether there are more records, so that the reader should request the next page at once
    records: list[JournalRecord]


class _Position(NamedTuple):
    """A position in a file of the journal."""

    path: Path
    offset: int  # bytes


_encode = msgspec.msgpack.Encoder().encode
decode_page = msgspec.msgpack.Decoder(Page).decode


class Tail:
    """The end of a journal, for readers over HTTP."""

    def __init__(self, journal: Journal, node: int) -> None:
        self.recovered = False  # set by the recorder after it has recovered its journal; before that, requests are refused
        self._journal = journal
        self._node = node
        self._positions: OrderedDict[int, _Position] = OrderedDict()  # `upto` of a page → position at which the next page begins

    async def answer(self, request: web.Request) -> web.Response:
        """Respond to `GET /journal?after=<seq>` with a `Page`, or with status 503 until the journal is recovered."""
        if not self.recovered:
            return web.json_response({"problem": "the recorder has not recovered its journal yet"}, status=503)
        after = request.query.get("after", "0")
        if not after.isascii() or not after.isdigit():
            return web.json_response({"problem": f"after={after[:20]!r} must be a seq, or 0"}, status=400)
        return web.Response(body=_encode(await self.page(int(after))), content_type="application/msgpack")

    async def page(self, after: int) -> Page:
        """Return the records with seqs greater than `after`. At most `MAX_PAGE_BYTES` of the journal are read."""
        # `archived_seq` and the list of files are taken before the files are read. If a file becomes segments and is deleted
        # while this page is made, the page ends before the file, and `archived` of the next page covers the file.
        archived = self._journal.archived_seq
        files = [(file.path, file.size) for file in self._journal.files if file.last_seq > after]
        page = Page(node=self._node, at_ms=wall_clock_ms(), upto=after, archived=archived, more=False, records=[])
        next_position = await asyncio.to_thread(_read, files, after, self._positions.get(after), page)
        if next_position is not None:
            self._remember(page.upto, next_position)
        return page

    def _remember(self, upto: int, next_position: _Position) -> None:
        """Remember where the page after `upto` begins. If there are too many positions, forget the oldest one."""
        self._positions[upto] = next_position
        self._positions.move_to_end(upto)
        if len(self._positions) > MAX_POSITIONS:
            self._positions.popitem(last=False)


def may_be_fact(stream: str, topic: str) -> bool:
    """Whether a message may be a fact of a campaign: an order, an outcome, an answer, or a release."""
    return stream in FACT_STREAMS or topic == RELEASE


def _read(files: list[tuple[Path, int]], after: int, start: _Position | None, page: Page) -> _Position | None:
    """Add the records with seqs greater than `after` to `page`; return the position at which the next page begins.

    `files` are paths and sizes of journal files. `start` is a position in one of the files, before which there are no such
    records; None if no position is known.
    """
    position = start
    remaining_bytes = MAX_PAGE_BYTES  # that may still be read for this page
    for path, size in files:
        offset = start.offset if start is not None and start.path == path else 0
        try:
            with path.open("rb") as file:
                while offset < size:
                    if remaining_bytes <= 0:
                        page.more = True
                        return position
                    content = _scan_from(file, offset, size)
                    if not content.length:
                        break  # the records in the rest of the file are damaged
                    offset += content.length
                    remaining_bytes -= content.length
                    position = _Position(path, offset)
                    _add_records(page, content.messages, after)
        except FileNotFoundError:  # the file has become segments; `archived` of the next page covers it
            return position
    return position


def _scan_from(file: BinaryIO, offset: int, size: int) -> JournalContent:
    """Decode the records that begin at `offset` and are complete within `MAX_PAGE_BYTES`. `size` is the size of the file.

    If the first record is longer, twice as many bytes are read, until it is complete. If it is damaged, the content is empty.
    """
    read_bytes = MAX_PAGE_BYTES
    while True:
        file.seek(offset)
        content = scan(file.read(min(read_bytes, size - offset)))
        is_rest_read = read_bytes >= size - offset
        if content.length or is_rest_read:
            return content
        read_bytes *= 2  # the record at this offset is longer


def _add_records(page: Page, records: list[JournalRecord], after: int) -> None:
    """Add the accepted records with seqs greater than `after` that may be facts, and move `page.upto` past all records."""
    for record in records:
        if record.seq > after:
            page.upto = max(page.upto, record.seq)
            if _is_accepted(record) and may_be_fact(record.stream, record.topic):
                page.records.append(record)


def _is_accepted(record: JournalRecord) -> bool:
    return record.refused_because is None and DUPLICATE_OF not in record.headers
