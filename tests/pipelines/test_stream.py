"""Streaming takes segments in as they come, beside the batch ingest, and each counts once."""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis.exceptions import RedisError

from contracts.envelope import Stream
from contracts.tables import IDS, SEGMENTS
from pipelines.ingest.run_all import ingest_audit_publish
from pipelines.stream.query import Streamed, Streaming, checkpoint_of
from tests.pipelines.conftest import Place
from tests.pipelines.makers import seq_at, trigger
from tests.servers import Server, free_port

pytestmark = pytest.mark.slow


@pytest.fixture
def place(place: Place, redis_server: Server) -> Place:
    """Here with Redis, and small micro-batches in quick succession."""
    update = {"redis_port": redis_server.port, "stream_seconds": 0.2, "stream_max_segments": 2}
    place.settings = place.settings.model_copy(update=update)
    return place


def stream(place: Place) -> Streamed:
    """Stream until nothing is new."""
    return Streaming(place.spark, place.catalog, place.settings).run(threading.Event(), until_idle=True)


def write_triggers(place: Place, *moments: int) -> None:
    """A segment for each moment, with one trigger for one vehicle."""
    for ms in moments:
        place.write(Stream.TRIGGER, [trigger(ms, [f"STREAM-{ms}"])])


def test_what_the_batch_ingest_took_is_not_taken_again_and_a_restart_goes_on(place: Place) -> None:
    write_triggers(place, 1)
    place.ingest("batch")
    write_triggers(place, 2, 3, 4)

    first = stream(place)
    write_triggers(place, 5)
    second = stream(place)
    shutil.rmtree(checkpoint_of(place.settings))
    third = stream(place)

    assert (first.segments, first.batches) == (3, 2)
    assert (second.segments, second.rows) == (1, 2)  # the id, and the segment itself
    assert third == Streamed()
    assert place.rows(IDS, "seq") == [seq_at(ms) for ms in (1, 2, 3, 4, 5)]


def test_a_stream_and_a_batch_ingest_at_once_take_each_segment_once(place: Place) -> None:
    write_triggers(place, *range(1, 6))

    def batch() -> None:
        ingest_audit_publish(place.run("batch", 10))

    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(batch)
        stream(place)
        beside.result()

    assert place.rows(IDS, "seq") == [seq_at(ms) for ms in range(1, 6)]
    assert len(place.rows(SEGMENTS, "path")) == 5


def test_a_micro_batch_that_fails_ends_the_stream_with_its_error_and_the_next_start_goes_on(place: Place) -> None:
    with_redis = place.settings
    place.settings = with_redis.model_copy(update={"redis_port": free_port()})
    write_triggers(place, 1)

    with pytest.raises(RedisError):
        stream(place)
    place.settings = with_redis
    stream(place)

    assert place.rows(IDS, "seq") == [seq_at(1)]
