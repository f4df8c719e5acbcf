"""One answer from queues, archive and lake: each entry once with its state, and the same page by page."""

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.envelope import Envelope, Stream, segment_path, to_arrow
from manifold.contracts.outcomes import CODES, Outcome, OutcomeRecord
from manifold.contracts.seq import datetime_of, seq_of
from manifold.contracts.tables import IDS, OUTCOMES, SEGMENTS
from manifold.contracts.topics import TRIGGER
from manifold.history.entry import Bounds, EntryHistory
from manifold.history.from_queues import MAX_SEQS_PER_SCORE
from manifold.history.merge import History
from manifold.settings import Settings
from tests.support.lake_rows import append, new_lake
from tests.support.servers import Server, free_port

HOUR_AGO_MS = int((datetime.now(UTC) - timedelta(hours=1)).timestamp() * 1000)
RUN = uuid.uuid4().hex[:12]
VIN, OTHER, BUSY = f"M-{RUN}", f"N-{RUN}", f"B-{RUN}"


def seq(n: int) -> int:
    return seq_of(HOUR_AGO_MS + n, 0, 0)


# By index: where an entry is known, and its state.
STANDS = {
    1: "delivered",  # both in the lake
    2: "cancelled",  # trigger in the lake, outcome in the archive
    3: "pending",  # lake and queue
    4: "delivered",  # both in the archive
    5: "in flight",  # archive and queue
    6: "delivered",  # lake, and an outcome remembered by the queue: its record is under way
    7: "parked",  # queue only: its trigger is in the recorder's journal
    8: "pending",  # queue only
}
AT_ONCE = [
    seq_of(HOUR_AGO_MS, 0, n) for n in range(3 * MAX_SEQS_PER_SCORE)
]  # of one millisecond: many of them collide as Redis scores
IN_LAKE, IN_ARCHIVE, QUEUED = (1, 2, 3, 6), (3, 4, 5), (3, 5, 8)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, redis_server: Server) -> Settings:
    """Settings without a running recorder."""
    home = tmp_path_factory.mktemp("merged")
    return Settings(home=home, redis_port=redis_server.port, recorder_port=free_port(), api_port=free_port())


def segment(settings: Settings, stream: Stream, messages: Iterable[tuple[int, str, bytes]]) -> str:
    envelopes = [Envelope(seq(n), datetime_of(seq(n)), stream, topic, payload) for n, topic, payload in messages]
    path = segment_path(stream, envelopes[0].seq, 0)
    file = settings.home / "archive" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(to_arrow(envelopes), file)
    return path


def trigger(n: int) -> tuple[int, str, bytes]:
    return n, TRIGGER, f'{{"ids": ["{VIN}", "{OTHER}"], "request_id": "task_{RUN}", "data_id": "d{n}"}}'.encode()


def ended(n: int, how: Outcome) -> tuple[int, str, bytes]:
    return n + 100, f"outcomes/{VIN}", OutcomeRecord(VIN, seq(n), how, HOUR_AGO_MS + n + 100).to_wire()


@pytest.fixture(scope="module")
def catalog(settings: Settings) -> Catalog:
    """Archive and lake. One ingested segment is not read any more, although it names the vehicle."""
    taken_in = segment(settings, Stream.TRIGGER, [trigger(n) for n in (1, 2)])
    segment(settings, Stream.TRIGGER, [trigger(n) for n in IN_ARCHIVE])
    segment(settings, Stream.OUTCOME, [ended(2, Outcome.CANCELLED), ended(4, Outcome.DELIVERED)])
    catalog = new_lake(settings)
    row = {"request_id": f"task_{RUN}", "applied": True}
    for vin in (VIN, OTHER):
        append(catalog, IDS, [{"vin": vin, "ts": datetime_of(seq(n)), "seq": seq(n), "data_id": f"d{n}", **row} for n in IN_LAKE])
    done = {"vin": VIN, "seq": seq(1), "accepted_at": datetime_of(seq(1)), "outcome": "delivered"}
    append(catalog, OUTCOMES, [done | {"ended_at": datetime_of(seq(2)), "acknowledged_at": datetime_of(seq(2))}])
    listed = {"stream": "trigger", "messages": 2, "first_seq": seq(1), "last_seq": seq(2), "run_id": "r"}
    append(catalog, SEGMENTS, [{"path": taken_in, "ingested_at": datetime.now(UTC), **listed}])
    return catalog


@pytest.fixture(scope="module")
def redis(redis_server: Server) -> Iterator[Redis]:
    """Pending entries of the vehicle, and remembered outcomes."""
    with Redis(port=redis_server.port) as client:
        client.zadd(keys.pending(VIN), {str(seq(n)): seq(n) for n in QUEUED})
        client.zadd(keys.parked(VIN), {str(seq(7)): seq(7)})
        client.hset(keys.inflight(VIN), mapping={"seq": seq(5), "published_at": HOUR_AGO_MS, "attempts": 2, "deadline": 1})
        client.zadd(keys.done(VIN), {str(seq(6)): CODES[Outcome.DELIVERED]})
        client.hset(keys.trigger(seq(8)), mapping={"request_id": f"task_{RUN}", "data_id": "d8"})
        client.zadd(keys.pending(BUSY), {str(one): one for one in AT_ONCE})
        yield client


@pytest.fixture
def history(settings: Settings, redis: Redis, catalog: Catalog) -> History:
    return History(settings, redis, catalog)


def paged(history: History, vin: str, limit: int) -> list[list[EntryHistory]]:
    pages, before = [], Bounds().before
    while True:
        page = history.vin_page(vin, Bounds(limit=limit, before=before))
        assert len(page.entries) <= limit
        pages.append(page.entries)
        if page.before is None:
            return pages
        assert page.before < before, "each page continues the previous one"
        before = page.before


def test_each_entry_of_a_vehicle_is_shown_once_with_its_current_state(history: History) -> None:
    entries = history.vin(VIN)

    assert [(entry.seq, str(entry.state)) for entry in entries] == [(seq(n), state) for n, state in STANDS.items()]
    assert [entry.data_id for entry in entries] == ["d1", "d2", "d3", "d4", "d5", "d6", "", "d8"]
    assert entries[4].attempts == 2
    assert entries[0].acknowledged_at == datetime_of(seq(2))


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 100])
def test_the_pages_of_a_vehicle_match_the_list_newest_first(history: History, limit: int) -> None:
    pages = paged(history, VIN, limit)

    assert [entry for page in reversed(pages) for entry in page] == history.vin(VIN)


def test_a_page_ends_at_the_requested_seq(history: History) -> None:
    page = history.vin_page(VIN, Bounds(limit=100, since=seq(3), before=seq(6)))

    assert ([entry.seq for entry in page.entries], page.before) == ([seq(3), seq(4), seq(5)], None)


def test_a_page_takes_its_share_of_a_long_queue_and_the_pages_have_all(history: History) -> None:
    pages = paged(history, BUSY, 1000)

    assert [entry.seq for page in reversed(pages) for entry in page] == AT_ONCE
    assert len(pages) == 4


def test_a_vehicle_without_entries_has_no_history(history: History) -> None:
    assert history.vin(f"nobody-{RUN}") == history.vin_page(f"nobody-{RUN}").entries == []
    assert history.waiting(f"nobody-{RUN}", 10) == (0, [])


def test_pending_entries_come_from_the_queues_oldest_first(history: History) -> None:
    count, entries = history.waiting(VIN, 3)

    assert count == 4
    assert [(entry.seq, str(entry.state)) for entry in entries] == [
        (seq(3), "pending"),
        (seq(5), "in flight"),
        (seq(7), "parked"),
    ]


def test_a_batch_is_counted_by_entry_state_and_listed_if_small(history: History) -> None:
    page = history.batches(f"task_{RUN}")

    assert [batch.seq for batch in page.batches] == [seq(n) for n in (1, 2, 3, 4, 5, 6)]
    assert [dict(batch.states) for batch in page.batches] == [
        {"delivered": 1, "pending": 1},
        {"cancelled": 1, "pending": 1},
        {"pending": 2},
        {"delivered": 1, "pending": 1},
        {"in flight": 1, "pending": 1},
        {"delivered": 1, "pending": 1},
    ]
    assert page.complete_seqs == {batch.seq for batch in page.batches}
    assert [replace(entry, state=str(entry.state)) for entry in page.entries if entry.vin == VIN] == [
        replace(entry, state=str(entry.state)) for entry in history.vin(VIN) if entry.seq <= seq(6)
    ]


def test_without_an_api_the_lake_is_opened_locally(settings: Settings, redis: Redis, history: History) -> None:
    assert History(settings, redis).vin(VIN) == history.vin(VIN)
