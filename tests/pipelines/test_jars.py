"""Fetched jars are verified before they are copied."""

import hashlib
from pathlib import Path

import pytest

from manifold.contracts.errors import Permanent, Retryable
from manifold.settings import Settings
from pipelines.spark import cds_archive, jars
from pipelines.spark.conf import SQLITE_JAR
from pipelines.spark.jars import SHA256, _copy_verified


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(None, f"the repository has sent no {SQLITE_JAR}; use another repository", id="missing"),
        pytest.param(
            b"another",
            f"{SQLITE_JAR} has SHA-256 {hashlib.sha256(b'another').hexdigest()}, not {SHA256[SQLITE_JAR]}; "
            "do not use this repository",
            id="another jar",
        ),
    ],
)
def test_a_missing_or_altered_jar_is_refused_with_the_reason(tmp_path: Path, content: bytes | None, says: str) -> None:
    downloads, folder = tmp_path / "downloads", tmp_path / "jars"
    downloads.mkdir()
    folder.mkdir()
    if content is not None:
        (downloads / f"org.xerial_{SQLITE_JAR}").write_bytes(content)

    with pytest.raises(Permanent) as refused:
        _copy_verified(SQLITE_JAR, downloads, folder)

    assert str(refused.value) == says
    assert list(folder.iterdir()) == []


def test_a_repository_that_does_not_answer_in_time_is_named_and_not_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "RESOLVE_TIMEOUT_S", 0.01)

    with pytest.raises(Retryable, match=r"took more than 0\.01 s; check the network"):
        jars.fetch(tmp_path, [SQLITE_JAR])


def test_a_class_archive_that_takes_too_long_is_left_out_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cds_archive, "RUN_TIMEOUT_S", 0.01)

    with pytest.raises(Retryable, match="the class archive could not be made"):
        cds_archive.make_class_archive(Settings(home=tmp_path / "home", jars=tmp_path / "jars"))
