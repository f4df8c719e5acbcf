"""What `manifold doctor` says of the certificates that settings name: in an environment nobody else looks at the files."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from console import _doctor_certificates
from console._doctor_certificates import certificates
from contracts.settings import Settings
from tests.stores.identities import new_identity


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A certificate and its authority, both of which end tomorrow."""
    identity = new_identity("tomorrow")
    identity.write(tmp_path / "tls.crt", tmp_path / "tls.key")
    return {"certificate": str(tmp_path / "tls.crt"), "ca": str(identity.write_authority(tmp_path / "ca.crt"))}


def settings(home: Path, certificate: str, ca: str, *, by: str) -> Settings:
    """Settings that name the two files: for HTTP and the broker, or in the URL of a server."""
    urls = {
        "redis_url": f"rediss://u:p@redis:6379/0?ssl_ca_certs={ca}&ssl_certfile={certificate}",
        "signals_amqp_url": f"amqps://u:p@rabbitmq:5671/?cafile={ca}&certfile={certificate}",
        "catalog_uri": f"postgresql+psycopg://u:p@postgres/catalog?sslmode=verify-full&sslrootcert={ca}&sslcert={certificate}",
    }
    if by in urls:
        return Settings(home=home, **{by: urls[by]})  # type: ignore[arg-type]  # all three are secret texts
    return Settings(home=home, tls_ca=ca, **{by: certificate})  # type: ignore[arg-type]  # the name of a file


BY = ["http_certificate", "tls_certificate", "redis_url", "signals_amqp_url", "catalog_uri"]


@pytest.mark.parametrize("by", BY)
def test_what_is_about_to_end_is_named(by: str, files: dict[str, str], tmp_path: Path) -> None:
    found = certificates(settings(tmp_path, **files, by=by))
    assert found is not None
    tomorrow = f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%d}"
    assert not found.passed
    assert f"{files['certificate']} ends {tomorrow}" in found.seen
    assert f"{files['ca']} ends {tomorrow}" in found.seen


@pytest.mark.parametrize("by", BY)
def test_what_holds_for_a_while_passes(by: str, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_doctor_certificates, "SPARE", timedelta(hours=1))
    found = certificates(settings(tmp_path, **files, by=by))
    assert found is not None
    assert found.passed
    assert found.seen.startswith("the first ends ")


def test_what_cannot_be_read_is_named_and_without_certificates_nothing_is_said(tmp_path: Path) -> None:
    found = certificates(Settings(home=tmp_path, tls_ca="/nowhere/ca.crt"))
    assert found is not None
    assert (found.passed, found.seen) == (False, "/nowhere/ca.crt cannot be read")
    assert certificates(Settings(home=tmp_path)) is None
