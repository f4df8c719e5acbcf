"""The certificate registry: long-expired entries are removed and no line is lost."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from manifold.runtime import secret_files
from manifold.sandbox.platform import cert_registry, certificates
from manifold.settings import Settings


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with CAs and their certificates for tap and services."""
    certificates.create_missing(Settings(home=tmp_path, tls=True))
    return tmp_path


def names(home: Path, now: datetime | None = None) -> list[str]:
    return [row.name for row in cert_registry.unexpired(home, now=now)]


def test_long_expired_certificates_are_removed_and_others_kept(home: Path) -> None:
    known = names(home)
    certificates.issue(home, "V1", days=400)
    later = datetime.now(UTC) + timedelta(days=certificates.LEAF_DAYS) + cert_registry.RETENTION

    assert cert_registry.forget_expired(home) == 0
    assert cert_registry.forget_expired(home, now=later + timedelta(days=1)) == len(known)
    assert names(home) == ["V1"]


def test_concurrent_issues_lose_no_line(home: Path) -> None:
    known = len(names(home))
    later = datetime.now(UTC) + timedelta(days=certificates.LEAF_DAYS) + cert_registry.RETENTION + timedelta(days=1)
    with ThreadPoolExecutor(4) as pool:
        forgetting = [pool.submit(cert_registry.forget_expired, home, now=later) for _ in range(20)]
        for number in range(20):
            certificates.issue(home, f"V{number}", days=400)
    assert sum(done.result() for done in forgetting) == known
    assert names(home) == [f"V{number}" for number in range(20)]


def test_a_torn_line_costs_no_other(home: Path) -> None:
    known = names(home)
    with (secret_files.folder(home) / cert_registry.FILE).open("a") as out:
        out.write('{"name": "V0", "ser')
    certificates.issue(home, "V1")
    assert names(home) == [*known, "V1"]
