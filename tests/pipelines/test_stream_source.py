"""Which segments the stream's source offers."""

import orjson

from manifold.contracts.envelope import Stream
from pipelines.stream.source import NewSegments
from tests.pipelines.lakes import Lake
from tests.pipelines.makers import trigger

DAY_MS = 86_400_000


def test_a_backlog_of_old_segments_is_offered_group_by_group_without_a_wait(lake: Lake) -> None:
    lake.renew()
    settings = lake.settings.model_copy(update={"ingest_max_bytes": 1})
    old = [lake.archive(Stream.TRIGGER, [trigger(day * DAY_MS, [f"V{day}"])]) for day in range(3)]
    source = NewSegments(settings)

    def offered() -> list[str]:
        return [path for path, *_ in orjson.loads(source.latestOffset()["segments"])]

    for path in old:
        assert offered() == [path]
        (settings.home / "archive" / path).unlink()  # as if it had been ingested and had left the archive
