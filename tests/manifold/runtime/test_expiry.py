"""Certificate expiry on /metrics, read from the files on each scrape."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from manifold.contracts.tls import CA, REVOKED, SECRETS, SERVER
from manifold.runtime.expiry import EXPIRES, Kind, ends_at, export_certificate_expiry
from manifold.sandbox.platform import certificates
from manifold.settings import Settings

BEGAN = datetime(2027, 1, 1, tzinfo=UTC)


def days(home: Path, name: str, kind: Kind) -> float:
    """The expiry in days after `BEGAN`."""
    return (datetime.fromtimestamp(ends_at(str(home / SECRETS / name), kind), UTC) - BEGAN) / timedelta(days=1)


@pytest.fixture(autouse=True)
def nobody_else() -> None:
    EXPIRES.clear()


def test_the_last_ca_counts_and_a_crl_expires_when_due_for_renewal(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, tls=True)
    certificates.create_missing(settings, now=BEGAN)
    of_each = [(SERVER, Kind.CERTIFICATE), (CA, Kind.CA), (REVOKED, Kind.REVOKED)]
    assert [days(tmp_path, name, kind) for name, kind in of_each] == [30, 365, 7]
    certificates.maintain(settings, now=BEGAN + timedelta(days=250))
    assert [days(tmp_path, name, kind) for name, kind in of_each] == [280, 615, 257]


@pytest.mark.parametrize("kind", Kind)
def test_an_unreadable_file_counts_as_expired(tmp_path: Path, kind: Kind) -> None:
    file = tmp_path / "half.pem"
    assert ends_at(str(file), kind) == 0
    file.write_text("-----BEGIN CERTIFICATE-----\nhalf")
    assert ends_at(str(file), kind) == 0


def told() -> dict[str, str]:
    """The files reported on /metrics, with their kinds."""
    (family,) = (
        each
        for each in text_string_to_metric_families(generate_latest().decode())
        if each.name.startswith("manifold_certificate")
    )
    return {sample.labels["file"]: sample.labels["kind"] for sample in family.samples}


def test_only_files_of_the_tls_settings_are_reported(tmp_path: Path) -> None:
    export_certificate_expiry(Settings(home=tmp_path), "sdv-recorder")
    assert told() == {}
    export_certificate_expiry(Settings(home=tmp_path, tls_ca="/etc/ca.pem", tls_certificate="/etc/own.pem"), "sdv-recorder")
    assert told() == {"/etc/ca.pem": "ca", "/etc/own.pem": "certificate"}
