"""Data is found by data_id wherever it is stored; a message in both archive and lake counts once, a repeated one again."""

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from manifold.contracts.envelope import DUPLICATE_OF, Envelope, Stream, segment_path, to_arrow
from manifold.contracts.messages import sha1_hex
from manifold.contracts.seq import seq_of
from manifold.contracts.tables import DATA, META, SEGMENTS
from manifold.contracts.topics import TRIGGER, data_topic
from manifold.history import DataHistory
from manifold.history.merge import History
from manifold.runtime.redis import connect
from manifold.settings import Settings
from tests.support.lake_rows import append, new_lake
from tests.support.servers import Server, free_port

NOW = datetime.now(UTC).replace(microsecond=0)
PAYLOAD = b"\x00\xffbytes"


@pytest.fixture
def settings(tmp_path: Path, redis_server: Server) -> Settings:
    """An empty home over the shared Redis, without a recorder."""
    return Settings(
        home=tmp_path, redis_port=redis_server.port, recorder_port=free_port(), api_port=free_port(), retention_days=0.02
    )


def find(settings: Settings, data_id: str) -> DataHistory | None:
    with connect(settings.redis) as redis:
        return History(settings, redis).data(data_id)


def found(settings: Settings, data_id: str) -> dict[str, object]:
    """The result of `data show`, without a process."""
    seen = find(settings, data_id)
    assert seen is not None
    return seen.facts(data_id) | {"data": seen.payload}


def archive(settings: Settings, stream: Stream, *messages: tuple[int, str, bytes, dict[str, str], str | None]) -> str:
    """Write a segment of messages (age in minutes, topic, payload, headers, refusal reason); return its path."""
    envelopes: list[Envelope] = []
    for minutes, topic, payload, headers, refused in messages:
        at = NOW - timedelta(minutes=minutes)
        seq = seq_of(int(at.timestamp() * 1000), 0, len(envelopes))
        envelopes.append(Envelope(seq, at, stream, topic, payload, headers=headers, refused_because=refused))
    path = segment_path(stream, envelopes[0].seq, 0)
    file = settings.home / "archive" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(to_arrow(envelopes), file)
    return path


def minutes_ago(minutes: int) -> datetime:
    return NOW - timedelta(minutes=minutes)


def test_data_is_found_in_the_archive_with_each_publication_time(settings: Settings) -> None:
    topic = data_topic("map-7")
    archive(
        settings,
        Stream.DATA,
        (30, topic, PAYLOAD, {}, None),
        (20, data_topic("map-70"), b"other", {}, None),
        (10, topic, PAYLOAD, {}, None),
        (5, topic, b"other bytes", {}, "known with other bytes"),
    )

    assert found(settings, "map-7") == {
        "data_id": "map-7",
        "sha1": sha1_hex(PAYLOAD),
        "size_bytes": len(PAYLOAD),
        "first_seen_at": minutes_ago(30),
        "last_seen_at": minutes_ago(10),
        "times_seen": 2,
        "data": PAYLOAD,
    }


def test_inline_data_is_found_by_sha1_and_each_repeated_trigger_counts_as_seen(settings: Settings) -> None:
    inline = json.dumps({"ids": ["V"], "request_id": "r", "data": base64.b64encode(PAYLOAD).decode()}).encode()
    archive(settings, Stream.TRIGGER, (30, TRIGGER, inline, {}, None), (20, TRIGGER, inline, {DUPLICATE_OF: "1"}, None))

    shown = found(settings, sha1_hex(PAYLOAD))

    assert (shown["times_seen"], shown["size_bytes"]) == (2, len(PAYLOAD))


def test_lake_and_pending_segments_are_merged_without_double_counting(settings: Settings) -> None:
    topic, old = data_topic("map-8"), NOW - timedelta(days=40)
    taken_in = archive(settings, Stream.DATA, (30, topic, PAYLOAD, {}, None))
    archive(settings, Stream.DATA, (10, topic, PAYLOAD, {}, None))
    catalog, row = new_lake(settings), {"data_id": "map-8", "first_seen_at": old}
    append(catalog, DATA, [row | {"payload": PAYLOAD, "sha1": sha1_hex(PAYLOAD), "size_bytes": len(PAYLOAD), "seq": 1}])
    stored = {"sha1": sha1_hex(PAYLOAD), "stored_at": old}
    append(catalog, META, [row | {"last_seen_at": old, "times_seen": 2} | stored])
    seen = {"first_seen_at": NOW - timedelta(minutes=40), "last_seen_at": NOW - timedelta(minutes=30)}
    append(catalog, META, [row | seen | {"times_seen": 3} | stored])
    of_segment = {"stream": "data", "messages": 1, "first_seq": 1, "last_seq": 1, "run_id": "r", "ingested_at": NOW}
    append(catalog, SEGMENTS, [{"path": taken_in} | of_segment])

    shown = found(settings, "map-8")

    assert (shown["first_seen_at"], shown["last_seen_at"], shown["times_seen"]) == (old, minutes_ago(10), 6)
    assert shown["data"] == PAYLOAD


def test_unknown_data_is_not_found(settings: Settings) -> None:
    assert find(settings, "never-sent") is None
