"""Lake lookups of the recorder: no message waits for one that hangs."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from manifold.contracts.tables import DATA
from manifold.recorder._lake import THREADS, Lake
from manifold.settings import Settings
from tests.support.lake_rows import append_payloads, data_files, hanging, new_lake


def test_a_hanging_lake_yields_nothing_and_delays_no_message(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    catalog = new_lake(settings)
    append_payloads(catalog, {"old": b"1"}, at=datetime(2026, 8, 1, tzinfo=UTC))
    (file,) = data_files(catalog, DATA)

    async def scenario() -> None:
        lake = Lake(settings)
        assert await lake.payload("old") == b"1"
        with hanging(file):
            lake.row_timeout_s = 0.05
            async with asyncio.timeout(60):
                for _ in range(THREADS + 1):  # one more than can hang
                    assert await lake.payload("old") is None
            assert "has not answered" in str(lake.problem)
        lake.row_timeout_s = 60
        assert await lake.payload("old") == b"1"
        assert lake.problem is None
        lake.close()

    asyncio.run(scenario())
