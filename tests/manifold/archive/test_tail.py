"""What a reader is shown of a journal: all that may concern campaigns, once, page by page, while files come and go."""

import asyncio
import itertools
from datetime import UTC, datetime
from pathlib import Path

import pytest

from manifold.archive import tail
from manifold.archive.records import Annotation
from manifold.archive.tail import Page, Tail
from manifold.contracts.envelope import DUPLICATE_OF, Envelope, Stream
from manifold.contracts.topics import RELEASE, TRIGGER
from tests.manifold.archive.test_journal import journal, run


def envelope(seq: int, stream: Stream = Stream.OUTCOME, payload: bytes = b"{}", topic: str = "t", **more: object) -> Envelope:
    return Envelope(seq, datetime(2026, 8, 1, tzinfo=UTC), stream, topic, payload, **more)  # type: ignore[arg-type]


async def read(shown: Tail, after: int) -> tuple[list[int], Page]:
    """The seqs of all pages after a seq, and the last page."""
    seqs: list[int] = []
    while True:
        page = await shown.page(after)
        seqs += [record.seq for record in page.records]
        after = page.upto
        if not page.more:
            return seqs, page


def test_a_reader_is_shown_what_is_new_since_it_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        kept = journal(tmp_path)
        shown = Tail(kept, node=3)
        file = await kept.append([envelope(1), envelope(2)])
        kept.annotate(file, [Annotation(1, True)])
        assert (await read(shown, 0))[0] == [1, 2]
        kept.rotate()
        await kept.append([envelope(3)])
        assert (await read(shown, 2))[0] == [3]
        assert (await read(shown, 3))[0] == []
        assert (await read(shown, 0))[0] == [1, 2, 3]  # another reader
        kept.stop()

    run(scenario)


def test_only_accepted_messages_that_may_concern_campaigns_are_shown(tmp_path: Path) -> None:
    async def scenario() -> None:
        kept = journal(tmp_path)
        release = b'{"ids": ["A"], "request_id": "c", "data_id": "d", "campaign": {"wave": 0, "step": 1}}'
        await kept.append(
            [
                envelope(1, Stream.TRIGGER, release, TRIGGER),  # a publisher's
                envelope(2, Stream.TRIGGER, release, RELEASE),
                envelope(3, Stream.TRIGGER, release, RELEASE, headers={DUPLICATE_OF: "2"}),
                envelope(4, Stream.CAMPAIGN),
                envelope(5, Stream.CAMPAIGN, refused_because="no"),
                envelope(6, Stream.DATA, b'"campaign"'),
                envelope(7, Stream.ANSWER),
            ]
        )
        seqs, page = await read(Tail(kept, node=0), 0)
        assert (seqs, page.upto) == ([2, 4, 7], 7)
        kept.stop()

    run(scenario)


def test_long_journals_are_shown_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "MAX_PAGE_BYTES", 1000)

    async def scenario() -> None:
        kept = journal(tmp_path, max_bytes=5000)
        for first in range(1, 101, 10):
            await kept.append([envelope(seq, payload=b"x" * (5000 if seq == 42 else 100)) for seq in range(first, first + 10)])
        shown = Tail(kept, node=0)
        assert len(kept.files) > 2
        page = await shown.page(0)
        assert page.more
        assert len(page.records) < 20
        assert (await read(shown, 0))[0] == list(range(1, 101))
        kept.stop()

    run(scenario)


def test_what_has_become_segments_is_said_to_be_archived(tmp_path: Path) -> None:
    async def scenario() -> None:
        kept = journal(tmp_path)
        shown = Tail(kept, node=0)
        old = await kept.append([envelope(1), envelope(2)])
        kept.rotate()
        await kept.append([envelope(3)])
        await kept.finish_writing(old)
        await kept.remove(old, [])
        seqs, page = await read(shown, 1)
        assert (seqs, page.archived) == ([3], 2)
        kept.stop()

    run(scenario)


def test_a_reader_misses_nothing_while_files_become_segments(tmp_path: Path) -> None:
    async def scenario() -> None:
        kept = journal(tmp_path)
        shown, seqs, archived = Tail(kept, node=0), itertools.count(1), set[int]()
        found, after = set[int](), 0

        async def write() -> None:
            for _ in range(60):
                await kept.append([envelope(next(seqs)) for _ in range(3)])
                kept.rotate()
                if len(kept.files) > 2:
                    old = kept.files[0]
                    archived.update(range(old.first_seq, old.last_seq + 1))
                    await kept.finish_writing(old)
                    await kept.remove(old, [])

        writing = asyncio.create_task(write())
        while not writing.done() or after < 180:
            page = await shown.page(after)
            found.update(record.seq for record in page.records)
            if page.archived > after:
                found.update(seq for seq in archived if after < seq <= page.archived)
            after = max(page.upto, page.archived)
        assert found == set(range(1, 181))
        kept.stop()

    run(scenario)
