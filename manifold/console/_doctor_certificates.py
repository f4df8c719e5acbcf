"""The certificate checks of `manifold doctor`, for the sandbox's certificates or those named by the settings."""

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from socket import create_connection
from urllib.parse import SplitResult, parse_qs, urlsplit

from manifold.console._diagnostic import Diagnostic
from manifold.contracts.redis_url import split_redis_url
from manifold.runtime.expiry import ends_at, files_of
from manifold.settings import Settings
from manifold.settings.plaintext_endpoints import addresses

MIN_VALIDITY = timedelta(days=14)  # the minimum remaining validity, as in the alert rules
CHECK = "certificates"
# The default port of each scheme whose connections begin with a TLS handshake. PostgreSQL's do not, so it is not listed.
PORTS = {"mqtts": 8883, "ssl": 8883, "rediss": 6379, "amqps": 5671, "https": 443}
WAIT_S = 3
UNREADABLE = 0  # the result of `ends_at` for a file that cannot be read


def check_certificates(settings: Settings) -> Diagnostic | None:
    """Check that all certificates stay valid for a while; None if TLS is not used."""
    return _check_sandbox(settings) if settings.tls else _check_settings(settings)


def _check_sandbox(settings: Settings) -> Diagnostic:
    """Check that CAs, certificates and the revocation list are renewed in time."""
    from manifold.sandbox.platform.certificates import overdue  # slow import, which other checks do not need

    remedy = f"make up; why nobody renews them is in {settings.home}/logs/keeper.log"
    try:
        late = overdue(settings)
    except (OSError, ValueError) as exc:
        late = [" ".join(str(exc).split())[:200]]
    return Diagnostic(CHECK, not late, "; ".join(late) or "none is about to end", remedy)


def _check_settings(settings: Settings) -> Diagnostic | None:
    """Check the certificate files named by the settings, and the certificates that servers present.

    Both, because a server that loads its certificate only at start may still present an old one after the file was renewed.
    """
    ends = {file: ends_at(file, kind) for file, kind in files_of(settings, settings.mqtt_username_recorder).items()}
    ends |= {f"what {name} shows": end for name, end in _expiry_by_server(settings)}
    if not ends:
        return None
    earliest_allowed_end = (datetime.now(UTC) + MIN_VALIDITY).timestamp()
    problems = []
    for source, end in ends.items():
        if end == UNREADABLE:
            problems.append(f"{source} cannot be read")
        elif end < earliest_allowed_end:
            problems.append(f"{source} ends {_day(end)}")
    remedy = "renew what it names, and start a server again that shows a former one: what has ended is refused"
    return Diagnostic(CHECK, not problems, "; ".join(problems) or f"the first ends {_day(min(ends.values()))}", remedy)


def _expiry_by_server(settings: Settings) -> Iterator[tuple[str, float]]:
    """Yield the setting and host of each reachable TLS server, and when its certificate expires, in seconds since 1970.

    Unreachable servers are skipped, because other checks report them.
    """
    for name, url in addresses(settings):
        try:
            plain_url, _ = split_redis_url(url)
            parts = urlsplit(plain_url)
            if parts.scheme not in PORTS or not parts.hostname:
                continue
            certificate = _fetch_certificate(parts, settings)
        except (OSError, ValueError):  # includes values that are not URLs, such as other catalog properties
            continue
        if certificate:
            from cryptography import x509  # slow import, only needed with certificates

            yield f"{name} ({parts.hostname})", x509.load_der_x509_certificate(certificate).not_valid_after_utc.timestamp()


def _fetch_certificate(parts: SplitResult, settings: Settings) -> bytes:
    """Fetch a server's certificate (DER), even if it is untrusted; empty if the server has none.

    A client certificate is presented to servers that require one: that of the URL, or else that of the settings.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    query = {option: files[0] for option, files in parse_qs(parts.query).items()}
    # URLs of Redis name the files with the prefix `ssl_`, URLs of RabbitMQ without.
    client_certificate = query.get("ssl_certfile") or query.get("certfile") or settings.tls_certificate
    client_key = query.get("ssl_keyfile") or query.get("keyfile") or settings.tls_key or None
    if client_certificate:
        context.load_cert_chain(client_certificate, client_key)
    host = parts.hostname or ""
    with create_connection((host, parts.port or PORTS[parts.scheme]), WAIT_S) as plain:
        plain.settimeout(WAIT_S)
        with context.wrap_socket(plain, server_hostname=host) as connection:
            return connection.getpeercert(binary_form=True) or b""


def _day(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d}"
