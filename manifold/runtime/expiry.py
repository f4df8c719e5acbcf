"""Expiry times of a service's own and trusted certificates as Prometheus metrics; none without TLS."""

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from prometheus_client import Gauge

from manifold.settings import Settings


class Kind(StrEnum):
    """The kind of content in a file."""

    CERTIFICATE = "certificate"  # with its intermediates: the earliest expiry counts
    CA = "ca"  # CAs during rotation: the latest expiry counts
    REVOKED = "revoked"  # a revocation list; it expires at its next update


# URL options that name files, for Redis, RabbitMQ and PostgreSQL.
_IN_URLS: Mapping[str, Kind] = {
    **dict.fromkeys(("ssl_certfile", "certfile", "sslcert"), Kind.CERTIFICATE),
    **dict.fromkeys(("ssl_ca_certs", "cafile", "sslrootcert"), Kind.CA),
}
EXPIRES = Gauge(
    "manifold_certificate_expires_timestamp_seconds",
    "when what a file has of certificates ends, in seconds since 1970; 0: the file cannot be read",
    ["file", "kind"],
)


def export_expiry(settings: Settings, user: str = "", others: Mapping[str, Kind] | None = None) -> None:
    """Export the expiry of this service's files at /metrics. Each scrape reads the files, so that a renewal shows at once.

    `user` is its user name at the broker, empty if it does not connect; `others` are additional files.
    """
    for file, kind in {**files_of(settings, user), **(others or {})}.items():
        EXPIRES.labels(file, kind.value).set_function(partial(ends_at, file, kind))


def ends_at(file: str, kind: Kind) -> float:
    """Return the expiry in seconds since 1970; 0: the file cannot be read."""
    try:
        return _ENDS[kind](Path(file).read_bytes()).timestamp()
    except (OSError, ValueError):
        return 0.0


def files_of(settings: Settings, user: str) -> dict[str, Kind]:
    """Return the certificates and CAs that a service uses for HTTP, broker (as `user`), Redis, RabbitMQ and catalog."""
    of_broker = settings.tls_files(user)
    certificates = {settings.http_tls_files.certificate, of_broker.certificate if user else ""}
    if settings.tls and not settings.redis_url.get_secret_value():
        certificates.add(settings.local_client("", "")["certfile"])
    found = dict.fromkeys(sorted(certificates), Kind.CERTIFICATE) | {of_broker.ca: Kind.CA}
    secret = (settings.redis_url, settings.signals_redis_url, settings.signals_amqp_url, settings.signals_operator_url)
    for url in (*secret, settings.catalog_uri):
        named = parse_qsl(urlsplit(url.get_secret_value()).query)
        found |= {file: _IN_URLS[option] for option, file in named if option in _IN_URLS}
    return {file: kind for file, kind in found.items() if file}


def _first(content: bytes) -> datetime:
    from cryptography import x509  # slow import, only needed with certificates

    return min(each.not_valid_after_utc for each in x509.load_pem_x509_certificates(content))


def _last(content: bytes) -> datetime:
    from cryptography import x509

    return max(each.not_valid_after_utc for each in x509.load_pem_x509_certificates(content))


def _signed_anew(content: bytes) -> datetime:
    from cryptography import x509

    until = x509.load_pem_x509_crl(content).next_update_utc
    if until is None:
        raise ValueError("it does not say until when it holds")
    return until


_ENDS: Mapping[Kind, Callable[[bytes], datetime]] = {Kind.CERTIFICATE: _first, Kind.CA: _last, Kind.REVOKED: _signed_anew}
