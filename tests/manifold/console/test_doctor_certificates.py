"""`manifold doctor` on the certificates in the settings: nothing else checks the files in an environment."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr

from manifold.console import _doctor_certificates
from manifold.console._doctor_certificates import check_certificates
from manifold.settings import Settings
from tests.stores.identities import new_identity


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A certificate and its CA, both expiring tomorrow."""
    identity = new_identity("tomorrow")
    identity.write(tmp_path / "tls.crt", tmp_path / "tls.key")
    return {"certificate": str(tmp_path / "tls.crt"), "ca": str(identity.write_authority(tmp_path / "ca.crt"))}


def settings(home: Path, certificate: str, ca: str, *, by: str) -> Settings:
    """Settings that name the two files, for HTTP and the broker or in a server URL."""
    urls = {
        "redis_url": f"rediss://u:p@redis:6379/0?ssl_ca_certs={ca}&ssl_certfile={certificate}",
        "signals_amqp_url": f"amqps://u:p@rabbitmq:5671/?cafile={ca}&certfile={certificate}",
        "catalog_uri": f"postgresql+psycopg://u:p@postgres/catalog?sslmode=verify-full&sslrootcert={ca}&sslcert={certificate}",
    }
    if by in urls:
        return Settings(home=home, **{by: urls[by]})  # type: ignore[arg-type]  # all three are secret strings
    return Settings(home=home, tls_ca=ca, **{by: certificate})  # type: ignore[arg-type]  # a file name


BY = ["http_certificate", "tls_certificate", "redis_url", "signals_amqp_url", "catalog_uri"]


@pytest.mark.parametrize("by", BY)
def test_an_expiring_certificate_is_named(by: str, files: dict[str, str], tmp_path: Path) -> None:
    found = check_certificates(settings(tmp_path, **files, by=by))
    assert found is not None
    tomorrow = f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%d}"
    assert not found.passed
    assert f"{files['certificate']} ends {tomorrow}" in found.seen
    assert f"{files['ca']} ends {tomorrow}" in found.seen


@pytest.mark.parametrize("by", BY)
def test_a_certificate_valid_for_longer_passes(
    by: str, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_doctor_certificates, "MIN_VALIDITY", timedelta(hours=1))
    found = check_certificates(settings(tmp_path, **files, by=by))
    assert found is not None
    assert found.passed
    assert found.seen.startswith("the first ends ")


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_server_with_an_expiring_certificate_is_named(
    newest: ssl.TLSVersion, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis reads its certificate once, so a renewed file says nothing about the one in use. Redis also requires one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["certificate"], tmp_path / "tls.key")
    context.load_verify_locations(files["ca"])
    context.verify_mode, context.maximum_version = ssl.CERT_REQUIRED, newest
    query = f"ssl_ca_certs={files['ca']}&ssl_certfile={files['certificate']}&ssl_keyfile={tmp_path}/tls.key"
    with listening(context) as port:
        given = Settings(home=tmp_path, redis_url=SecretStr(f"rediss://u:hidden@127.0.0.1:{port}/0?{query}"))
        found = check_certificates(given)
        monkeypatch.setattr(_doctor_certificates, "MIN_VALIDITY", timedelta(hours=1))
        passed = check_certificates(given)
    assert found is not None
    assert passed is not None
    assert f"what redis_url (127.0.0.1) shows ends {datetime.now(UTC) + timedelta(days=1):%Y-%m-%d}" in found.seen
    assert "hidden" not in found.seen + found.remedy
    assert (found.passed, passed.passed) == (False, True)


@contextmanager
def listening(context: ssl.SSLContext) -> Iterator[int]:
    """A server that completes TLS handshakes and then stays silent; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
                        secured.recv(1)

        threading.Thread(target=greet, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def test_an_unreadable_file_is_named_and_without_certificates_nothing_is_printed(tmp_path: Path) -> None:
    found = check_certificates(Settings(home=tmp_path, tls_ca="/nowhere/ca.crt"))
    assert found is not None
    assert (found.passed, found.seen) == (False, "/nowhere/ca.crt cannot be read")
    assert check_certificates(Settings(home=tmp_path)) is None
