"""Prometheus metrics with the expiry times of a service's own and trusted certificates; there are none without TLS."""

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from prometheus_client import Gauge

from manifold.settings import Settings


class Kind(StrEnum):
    """The kind of content in a file, which decides the file's expiry time."""

    CERTIFICATE = "certificate"  # a certificate and its intermediates: the earliest expiry counts
    CA = "ca"  # one CA, or several during a rotation: the latest expiry counts
    REVOKED = "revoked"  # a revocation list: it expires at its next update


# Options in the URLs of Redis, RabbitMQ and PostgreSQL that name certificate files.
_URL_OPTIONS: Mapping[str, Kind] = {
    **dict.fromkeys(("ssl_certfile", "certfile", "sslcert"), Kind.CERTIFICATE),
    **dict.fromkeys(("ssl_ca_certs", "cafile", "sslrootcert"), Kind.CA),
}
EXPIRES = Gauge(
    "manifold_certificate_expires_timestamp_seconds",
    "when what a file has of certificates ends, in seconds since 1970; 0: the file cannot be read",
    ["file", "kind"],
)


def export_certificate_expiry(settings: Settings, user: str = "", others: Mapping[str, Kind] | None = None) -> None:
    """Export the expiry times of this service's files at /metrics. Each scrape reads the files anew.

    `user` is the service's user name at the broker; empty if it does not connect. `others` are additional files.
    """
    files = files_of(settings, user) | dict(others or {})
    for file, kind in files.items():
        EXPIRES.labels(file, kind.value).set_function(partial(ends_at, file, kind))


def ends_at(file: str, kind: Kind) -> float:
    """Return the file's expiry time in seconds since 1970; 0 if the file cannot be read."""
    try:
        read_expiry = _EXPIRY_READERS[kind]
        return read_expiry(Path(file).read_bytes()).timestamp()
    except (OSError, ValueError):
        return 0.0


def files_of(settings: Settings, user: str) -> dict[str, Kind]:
    """Return the certificate and CA files that a service uses for HTTP, broker (as `user`), Redis, RabbitMQ and catalog."""
    broker_files = settings.tls_files(user)
    certificates = {settings.http_tls_files.certificate}
    if user:
        certificates.add(broker_files.certificate)
    if settings.tls and not settings.redis_url.get_secret_value():  # the sandbox's own Redis
        certificates.add(settings.local_tls_options("", "")["certfile"])
    files = dict.fromkeys(sorted(certificates), Kind.CERTIFICATE) | {broker_files.ca: Kind.CA}
    for url in (
        settings.redis_url,
        settings.signals_redis_url,
        settings.signals_amqp_url,
        settings.signals_operator_url,
        settings.catalog_uri,
    ):
        for option, value in parse_qsl(urlsplit(url.get_secret_value()).query):
            if option in _URL_OPTIONS:
                files[value] = _URL_OPTIONS[option]
    return {file: kind for file, kind in files.items() if file}  # settings that are not used give an empty name


def _earliest_expiry(content: bytes) -> datetime:
    from cryptography import x509  # imported here, because the import is slow

    return min(certificate.not_valid_after_utc for certificate in x509.load_pem_x509_certificates(content))


def _latest_expiry(content: bytes) -> datetime:
    from cryptography import x509

    return max(certificate.not_valid_after_utc for certificate in x509.load_pem_x509_certificates(content))


def _next_update(content: bytes) -> datetime:
    from cryptography import x509

    next_update = x509.load_pem_x509_crl(content).next_update_utc
    if next_update is None:
        raise ValueError("the revocation list has no next update")
    return next_update


_EXPIRY_READERS: Mapping[Kind, Callable[[bytes], datetime]] = {
    Kind.CERTIFICATE: _earliest_expiry,
    Kind.CA: _latest_expiry,
    Kind.REVOKED: _next_update,
}
