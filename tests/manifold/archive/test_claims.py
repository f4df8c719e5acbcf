"""Claims whose store does not answer: the error says so."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from manifold.archive import claims
from manifold.archive.claims import ArchiveClaims, RedisClaims
from manifold.archive.lease_holders import FOLDER
from manifold.contracts.errors import Retryable
from manifold.contracts.storage import S3
from manifold.queues import connect


@pytest.fixture(autouse=True)
def _short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "RESPONSE_TIMEOUT_S", 0.2)


def test_a_redis_that_does_not_answer_is_named_with_that_reason() -> None:
    async def ask(port: int) -> None:
        redis = connect(f"redis://127.0.0.1:{port}")
        try:
            await RedisClaims(redis, 7).claims()
        finally:
            await redis.aclose()

    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(Retryable, match=r"^Redis: no answer$"):
        asyncio.run(ask(silent.getsockname()[1]))


def test_an_archive_that_does_not_answer_is_named_with_that_reason(tmp_path: Path) -> None:
    folder = tmp_path / "archive" / FOLDER / "7"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "claim.json")  # to open it blocks

    async def ask() -> None:
        try:
            await ArchiveClaims(f"file://{tmp_path}/archive", S3(), 7).claims()
        finally:
            os.close(os.open(folder / "claim.json", os.O_RDWR))

    with pytest.raises(Retryable, match=r"^the archive: no answer$"):
        asyncio.run(ask())
