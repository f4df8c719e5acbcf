"""A compacted queue as it is queried: from Redis alone if fully loaded, otherwise from archive and lake too."""

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from redis import Redis
from redis.exceptions import AuthenticationError

from manifold.contracts import keys
from manifold.contracts.ecq import ACKNOWLEDGEMENTS, EcqAck
from manifold.contracts.envelope import Envelope, Stream, segment_path, to_arrow
from manifold.contracts.events import Connected
from manifold.contracts.names import Owner
from manifold.contracts.outcomes import Outcome
from manifold.contracts.queue_names import ecq_queue
from manifold.contracts.seq import datetime_of, seq_of
from manifold.contracts.tables import ECQ_INDEX, ECQ_PAYLOAD, ECQ_SEQNO, ECQ_STATE, SEGMENTS, StateKind
from manifold.contracts.topics import ecq_rewind_topic, ecq_write_topic
from manifold.history.ecq import CompactedQueue, LiveMessage, Page
from manifold.history.merge import WHOLE_QUEUE, History
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.queues import BlockingBatch, Policy
from manifold.queues.verbs.claims import Release, ReleaseReason, UpdatePresence
from manifold.queues.verbs.ecq import Acknowledge, Append, Load, Rewind, Subscription
from manifold.queues.verbs.ecq import LiveMessage as Loaded
from manifold.queues.verbs.verb import Verb
from manifold.runtime.redis import connect
from manifold.settings import Settings
from tests.support.lake_rows import append
from tests.support.servers import Server, free_port, start_redis, stopping

HOUR_AGO_MS = int((datetime.now(UTC) - timedelta(hours=1)).timestamp() * 1000)
DAY_MS = 86_400_000


def seq(n: int, *, days_ago: int = 0) -> int:
    return seq_of(HOUR_AGO_MS - days_ago * DAY_MS + n, 0, 0)


def at(n: int) -> datetime:
    return datetime.fromtimestamp((HOUR_AGO_MS + n) / 1000, UTC)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Redis whose loaded mark these tests set and remove."""
    with stopping(start_redis(tmp_path_factory.mktemp("redis"))) as server:
        yield server


class Place:
    """A home and a client id of its own."""

    def __init__(self, home: Path, redis: Redis, port: int) -> None:
        self.redis, self.client_id = redis, f"C-{uuid.uuid4().hex[:12]}"
        self.settings = Settings(
            home=home, redis_port=port, recorder_port=free_port(), api_port=free_port(), ecq_retention_days=2
        )

    def do(self, *verbs: Verb) -> None:
        batch = BlockingBatch(self.redis, Policy.of(self.settings))
        for verb in verbs:
            queue = self.client_id if isinstance(verb, UpdatePresence) else ecq_queue(self.client_id)
            batch.add(queue, verb, HOUR_AGO_MS)
        batch.run()

    def loaded(self) -> None:
        self.redis.set(keys.LOADED, "now")

    def show(self, page: Page = WHOLE_QUEUE, settings: Settings | None = None) -> CompactedQueue:
        settings = settings or self.settings
        with connect(settings.redis) as redis:
            return History(settings, redis).compacted_queue(self.client_id, page)

    def archived(self, *messages: tuple[int, str, bytes], refused: str | None = None) -> str:
        envelopes = [
            Envelope(s, datetime_of(s), Stream.ECQ, topic, payload, refused_because=refused) for s, topic, payload in messages
        ]
        path = segment_path(Stream.ECQ, envelopes[0].seq, 0)
        file = self.settings.home / "archive" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(to_arrow(envelopes), file)
        return path

    def write(self, n: int, key: str, payload: bytes = b"") -> tuple[int, str, bytes]:
        return seq(n), ecq_write_topic(self.client_id, key), payload

    def ack(self, n: int, of: int, epoch: int = 0) -> tuple[int, str, bytes]:
        record = EcqAck(self.client_id, seq(of), HOUR_AGO_MS + n, epoch)
        return seq(n), f"{ACKNOWLEDGEMENTS}{self.client_id}", record.to_wire()

    def expired(self, n: int, of: int) -> tuple[int, str, bytes]:
        record = EcqAck(self.client_id, seq(of), HOUR_AGO_MS + n, passed_over=True, outcome=Outcome.EXPIRED)
        return seq(n), f"{ACKNOWLEDGEMENTS}{self.client_id}", record.to_wire()

    def rewind(self, n: int, word: str) -> tuple[int, str, bytes]:
        return seq(n), ecq_rewind_topic(self.client_id), word.encode()

    def in_lake(
        self, *messages: tuple[int, str, bytes], acked: tuple[int, ...] = (), kind: StateKind = StateKind.ACKNOWLEDGED
    ) -> None:
        """Store writes (seq, key, payload) and which of them were acknowledged or expired."""
        catalog = open_catalog(self.settings)
        ensure_tables(catalog)
        mine = {"client_id": self.client_id}
        rows = [mine | {"seq": s, "key": key, "ts": datetime_of(s), "payload": payload} for s, key, payload in messages]
        append(catalog, ECQ_PAYLOAD, rows)
        append(catalog, ECQ_INDEX, [row | {"applied": True} for row in rows])
        append(catalog, ECQ_SEQNO, [mine | {"last_seq": max(s for s, _, _ in messages)}])
        states = [{"acked_seq": s, "acked_at": datetime_of(s), "epoch": 0, "kind": kind.value} for s in acked]
        append(catalog, ECQ_STATE, [mine | state for state in states])

    def taken_in(self, path: str) -> None:
        now = datetime.now(UTC)
        row = {"path": path, "stream": "ecq", "messages": 1, "first_seq": 1, "last_seq": 1, "run_id": "r"}
        append(open_catalog(self.settings), SEGMENTS, [row | {"ingested_at": now, "began_at": now}])


@pytest.fixture
def place(tmp_path: Path, server: Server) -> Iterator[Place]:
    """A place whose queues are not loaded, without recorder and API."""
    with Redis(port=server.port) as redis:
        redis.delete(keys.LOADED)
        yield Place(tmp_path, redis, server.port)


def stands(queue: CompactedQueue) -> list[tuple[str, int, str]]:
    return [(entry.key, entry.seq, entry.state) for entry in queue.entries]


def test_a_fully_loaded_redis_answers_alone_in_the_documented_form(place: Place) -> None:
    place.loaded()
    owner = Owner(place.client_id)
    place.do(
        Append(seq(1), "climate", b"20"),
        Append(seq(2), "calendar/größe", b""),
        UpdatePresence(Connected(owner, HOUR_AGO_MS, True, 0), True),
        Subscription(1, claim=True),
        Append(seq(3), "seat", b"x" * 300),
        Acknowledge(EcqAck(owner, seq(1), HOUR_AGO_MS + 5)),
    )

    assert place.show().to_json() == {
        "client_id": place.client_id,
        "last_seq": seq(3),
        "acked_seq": seq(1),
        "acked_at": at(5).isoformat(),
        "entries": [
            {"key": "climate", "seq": seq(1), "ts": at(1).isoformat(), "size_bytes": 2, "state": "delivered"},
            {"key": "calendar/größe", "seq": seq(2), "ts": at(2).isoformat(), "size_bytes": 0, "state": "in flight"},
            {"key": "seat", "seq": seq(3), "ts": at(3).isoformat(), "size_bytes": 300, "state": "pending"},
        ],
    }
    assert not (place.settings.home / "lake").exists(), "the lake must not be read"


def test_an_unknown_client_has_no_queue(place: Place) -> None:
    place.loaded()

    assert place.show() == CompactedQueue(place.client_id, None, None, None, [])


@pytest.mark.parametrize("without", ["wiped", "away"])
def test_without_redis_the_queue_is_rebuilt_from_archive_and_lake(place: Place, without: str) -> None:
    settings = place.settings if without == "wiped" else place.settings.model_copy(update={"redis_port": free_port()})
    place.in_lake((seq(1), "a", b"1"), (seq(2), "b", b"22"), (seq(3), "c", b"333"), (seq(4), "d", b""), acked=(seq(1), seq(2)))
    taken_in = place.archived(place.write(5, "a", b"of a segment that the lake has"))
    place.taken_in(taken_in)
    place.archived(place.write(6, "a", b"666666"), place.ack(7, 3), place.rewind(8, str(seq(2))), place.ack(9, 2, epoch=seq(8)))
    place.archived((seq(20), ecq_write_topic(f"{place.client_id}-2", "a"), b"of another client"))
    place.archived(place.write(21, "a", b"refused"), refused="too large")

    found = place.show(settings=settings)

    assert stands(found) == [
        ("b", seq(2), "delivered"),
        ("c", seq(3), "pending"),
        ("d", seq(4), "pending"),
        ("a", seq(6), "pending"),
    ]
    assert [entry.size_bytes for entry in found.entries] == [2, 3, 0, 6]
    assert (found.last_seq, found.acked_seq, found.acked_at) == (seq(6), seq(2), at(9))


def test_a_refused_login_is_not_mistaken_for_an_outage(place: Place) -> None:
    place.redis.config_set("requirepass", "right")
    try:
        with pytest.raises(AuthenticationError):
            place.show()
    finally:
        place.redis.execute_command("AUTH", "right")
        place.redis.config_set("requirepass", "")


def test_the_size_of_bytes_missing_in_redis_comes_from_archive_and_lake(place: Place) -> None:
    place.in_lake((seq(1), "a", b"1"), (seq(2), "b", b"22"))
    place.archived(place.write(3, "c", b"333"))
    place.do(Load(0, seq(1), HOUR_AGO_MS, [Loaded(seq(1), "a", True), Loaded(seq(2), "b", False), Loaded(seq(3), "c", False)]))
    place.loaded()

    assert [(entry.key, entry.size_bytes, entry.state) for entry in place.show().entries] == [
        ("a", 1, "delivered"),
        ("b", 2, "pending"),
        ("c", 3, "pending"),
    ]


def test_redis_wins_and_gaps_are_filled_from_archive_and_lake(place: Place) -> None:
    """Like a site where only pipelines populate: Redis does not know the newest message of a key yet."""
    settings = place.settings.model_copy(update={"direct_enqueue": False})
    place.in_lake((seq(1), "a", b"1"), (seq(2), "b", b"22"), acked=(seq(1),))
    place.archived(place.write(4, "b", b"4444"), place.write(5, "new", b"5"))
    place.do(Append(seq(1), "a", b"1"), Append(seq(2), "b", b"22"), Append(seq(9), "c", b""))
    place.do(Acknowledge(EcqAck(place.client_id, seq(1), HOUR_AGO_MS)), Rewind(seq(7), 0))
    place.loaded()

    found = place.show(settings=settings)

    assert stands(found) == [
        ("a", seq(1), "pending"),
        ("b", seq(4), "pending"),
        ("new", seq(5), "pending"),
        ("c", seq(9), "pending"),
    ]
    assert found.acked_seq == 0, "the rewind is not in the archive yet"


@pytest.mark.parametrize(("kept_days", "state"), [(None, "expired"), (3.5, "expired"), (5, "pending"), (0, "pending")])
def test_acknowledged_and_pending_messages_have_their_own_retention(place: Place, kept_days: float | None, state: str) -> None:
    old, older = seq(1, days_ago=3), seq(1, days_ago=4)
    place.in_lake((old, "a", b"1"), (older, "b", b"22"), (seq(3), "c", b""), acked=(old, seq(3)))

    found = place.show(settings=place.settings.model_copy(update={"ecq_pending_retention_days": kept_days}))

    assert stands(found) == [("b", older, state), ("c", seq(3), "delivered")]


def test_an_expired_message_is_shown_with_its_reason_and_is_not_revived(place: Place) -> None:
    place.in_lake((seq(1), "a", b"1"), acked=(seq(1),), kind=StateKind.EXPIRED)
    place.archived(place.write(2, "b", b"22"), place.write(3, "c", b""), place.expired(7, 2), place.rewind(8, "earliest"))

    entries = place.show().to_json()["entries"]

    why = "its retention passed while it was pending"
    assert [(entry["key"], entry.get("ended_at"), entry.get("reason")) for entry in entries] == [
        ("a", at(1).isoformat(), why),
        ("b", at(7).isoformat(), why),
        ("c", None, None),
    ]
    assert [entry["state"] for entry in entries] == ["expired", "expired", "pending"]
    assert list(entries[2]) == ["key", "seq", "ts", "size_bytes", "state"]


@pytest.mark.parametrize("page", [WHOLE_QUEUE, Page(limit=10)], ids=["all", "page"])
def test_redis_alone_shows_that_a_pending_message_has_expired(place: Place, page: Page) -> None:
    """The dispatchers are about to end it; it is not sent any more."""
    place.loaded()
    old = seq(1, days_ago=3)
    place.do(Append(old, "a", b"1"), Append(seq(2), "b", b""))

    first, second = place.show(page).entries

    assert (first.state, first.ended_at, second.state) == ("expired", first.ts + timedelta(days=2), "pending")
    assert not (place.settings.home / "lake").exists(), "the lake must not be read"


@pytest.mark.parametrize("page", [WHOLE_QUEUE, Page(limit=10)], ids=["all", "page"])
def test_a_just_expired_message_is_shown_together_with_live_ones(place: Place, page: Page) -> None:
    place.loaded()
    owner, old = Owner(place.client_id), seq(1, days_ago=3)
    place.in_lake((old, "a", b"1"), (seq(2), "b", b""))
    place.do(Append(old, "a", b"1"), Append(seq(2), "b", b""))
    now = datetime.now(UTC)
    record = EcqAck(owner, old, round(now.timestamp() * 1000), passed_over=True, outcome=Outcome.EXPIRED)
    place.do(Acknowledge(record, claim=False))

    assert stands(place.show(page)) == [("a", old, "expired"), ("b", seq(2), "pending")]


def paged(place: Place, limit: int) -> tuple[list[LiveMessage], int]:
    """All entries, read page by page, and the number of pages."""
    told: list[LiveMessage] = []
    page, pages = place.show(Page(limit=limit)), 1
    while page.after is not None:
        told += page.entries
        page, pages = place.show(Page(limit=limit, after=page.after)), pages + 1
    return told + page.entries, pages


@pytest.mark.parametrize("is_whole", [True, False])
def test_paging_a_long_queue_agrees_between_redis_and_all_sources(place: Place, is_whole: bool) -> None:
    """Neighbouring seqs, which collide as sorted-set scores; some acknowledged, one superseded in flight."""
    place.loaded()
    place.in_lake((seq(0), "k0", b""))
    n, owner = 300, Owner(place.client_id)
    seqs = [seq(1) + each for each in range(n)]
    place.do(
        *(Append(each, f"k{each}", b"") for each in seqs),
        *(Acknowledge(EcqAck(owner, each, HOUR_AGO_MS), claim=False) for each in seqs[::3]),
        UpdatePresence(Connected(owner, HOUR_AGO_MS, True, 0), True),
        Subscription(1, claim=True),
        Append(seq(2), f"k{seqs[1]}", b"newer than what is in flight"),
    )
    if not is_whole:  # then archive and lake are read too, and the whole queue in batches of keys
        place.do(Load(0, None, None, [Loaded(seq(0), "k0", False)]))
    old = [] if is_whole else [("k0", seq(0), "pending")]
    expected = [(f"k{each}", each, "pending" if i % 3 else "delivered") for i, each in enumerate(seqs) if i != 1]

    told, pages = paged(place, limit=40)

    assert [(entry.key, entry.seq, entry.state) for entry in told] == [*old, *expected, (f"k{seqs[1]}", seq(2), "pending")]
    assert pages == 8
    assert place.show(Page(limit=n + 1)).after is None
    assert place.show().entries == told
    assert place.show().last_seq == seq(2)


@pytest.mark.parametrize("late", [False, True], ids=["twice", "late"])
def test_acks_repeated_late_or_of_superseded_messages_need_no_archive(place: Place, late: bool) -> None:
    place.loaded()
    owner, kept = Owner(place.client_id), 5
    place.do(
        UpdatePresence(Connected(owner, HOUR_AGO_MS, True, 0), True),
        Append(seq(0), "k", b""),
        Subscription(1, claim=True),
        *(Append(seq(10 + n), f"k{n}", b"") for n in range(kept)),
        Append(seq(20), "k", b"newer than what is in flight"),
        *([Release(seq(0), ReleaseReason.LOST)] if late else []),
        *[Acknowledge(EcqAck(owner, seq(0), HOUR_AGO_MS), claim=False)] * 2,
        *(Acknowledge(EcqAck(owner, seq(10 + n), HOUR_AGO_MS), claim=False) for n in range(kept)),
    )

    told, _ = paged(place, limit=2)

    assert [entry.seq for entry in told] == [*(seq(10 + n) for n in range(kept)), seq(20)]
    assert not (place.settings.home / "lake").exists(), "the lake must not be read"


class Written(Redis):
    """A client of a Redis into which another client writes two messages before each command."""

    appends: Iterator[Append]
    place: Place | None = None

    @property
    def connection_pool(self) -> Any:
        if self.place is not None:
            self.place.do(*islice(self.appends, 2))
        return self._pool

    @connection_pool.setter
    def connection_pool(self, pool: Any) -> None:
        self._pool = pool


def test_a_queue_written_faster_than_it_is_read_can_still_be_paged(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paging by seq would never end; here it ends when nothing is left to write."""
    monkeypatch.setattr("manifold.history.ecq_from_queues.MESSAGE_BATCH_SIZE", 1)
    place.loaded()
    first, endless = 20, 3000
    place.do(*(Append(seq(n), f"k{n}", b"") for n in range(first)))
    with Written(port=place.settings.redis_port) as redis:
        redis.place, redis.appends = place, (Append(seq(n), f"k{n % first}", b"") for n in range(first, endless))
        queue = History(place.settings, redis).compacted_queue(place.client_id, WHOLE_QUEUE)
        assert next(redis.appends).seq < seq(endless // 2)

    assert sorted(entry.key for entry in queue.entries) == sorted(f"k{n}" for n in range(first))


def test_a_page_of_large_messages_is_short(place: Place) -> None:
    """Payload bytes are read for the keys before them, so a long page would block Redis."""
    place.loaded()
    place.do(*(Append(seq(each), f"k{each}", b"x" * (1 << 20)) for each in range(10)))

    told, pages = paged(place, limit=10)

    assert [(entry.key, entry.size_bytes) for entry in told] == [(f"k{each}", 1 << 20) for each in range(10)]
    assert pages > 2
