"""The doctor's look at the archive: what it can list, and what ingest would ignore."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from manifold.archive.ignored_files import log_ignored_file
from manifold.console._doctor_archive import check_archive
from manifold.contracts.envelope import Stream, segment_path
from manifold.contracts.seq import first_seq_at
from manifold.settings import Settings


@pytest.fixture(autouse=True)
def nothing_ignored_before() -> None:
    log_ignored_file.cache_clear()


def test_files_that_ingest_ignores_are_counted_and_named(tmp_path: Path) -> None:
    segment = tmp_path / "archive" / segment_path(Stream.TRIGGER, first_seq_at(datetime.now(UTC) - timedelta(hours=5)), 0)
    segment.parent.mkdir(parents=True)
    for name in (segment.name, "sink.csv", os.fsdecode(b"r\xfcck.txt"), "_SUCCESS"):
        (segment.parent / name).touch()

    with capture_logs() as lines:
        found = check_archive(Settings(home=tmp_path))
    assert (found.passed, found.seen) == (
        True,
        "segments in the last 2 days: 1; 2 other files are ignored, and named in the log",
    )
    assert len(lines) == 2


def test_an_archive_without_other_files_passes(tmp_path: Path) -> None:
    assert check_archive(Settings(home=tmp_path)).seen == "segments in the last 2 days: 0"


def test_a_file_in_place_of_the_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "trigger").touch()
    found = check_archive(Settings(home=tmp_path))

    assert not found.passed
    assert "archive" in found.seen
    assert found.remedy
