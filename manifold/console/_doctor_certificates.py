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

SPARE = timedelta(days=14)  # minimum remaining validity, as in the alert rules
CHECK = "certificates"
# Schemes that begin with a TLS handshake, and their ports; PostgreSQL's does not.
PORTS = {"mqtts": 8883, "ssl": 8883, "rediss": 6379, "amqps": 5671, "https": 443}
WAIT_S = 3


def certificates(settings: Settings) -> Diagnostic | None:
    """Check that all certificates stay valid for a while; None if TLS is not used."""
    return _of_sandbox(settings) if settings.tls else _of_settings(settings)


def _of_sandbox(settings: Settings) -> Diagnostic:
    """Check that CAs, certificates and the revocation list are renewed in time."""
    from manifold.sandbox.platform.certificates import overdue  # slow import, which other checks do not need

    remedy = f"make up; why nobody renews them is in {settings.home}/logs/keeper.log"
    try:
        late = overdue(settings)
    except (OSError, ValueError) as exc:
        late = [" ".join(str(exc).split())[:200]]
    return Diagnostic(CHECK, not late, "; ".join(late) or "none is about to end", remedy)


def _of_settings(settings: Settings) -> Diagnostic | None:
    """Check files and servers: a server that loads its certificate at start may still use the old one."""
    ends = {file: ends_at(file, kind) for file, kind in files_of(settings, settings.mqtt_username_recorder).items()}
    ends |= {f"what {name} shows": end for name, end in _expiry_by_server(settings)}
    if not ends:
        return None
    until = (datetime.now(UTC) + SPARE).timestamp()
    late = [f"{what} ends {_day(end)}" if end else f"{what} cannot be read" for what, end in ends.items() if end < until]
    remedy = "renew what it names, and start a server again that shows a former one: what has ended is refused"
    return Diagnostic(CHECK, not late, "; ".join(late) or f"the first ends {_day(min(ends.values()))}", remedy)


def _expiry_by_server(settings: Settings) -> Iterator[tuple[str, float]]:
    """Yield the setting and host of each reachable TLS server, and its certificate's expiry. Others have their own check."""
    for name, url in addresses(settings):
        try:
            parts = urlsplit(split_redis_url(url)[0])
            seen = _certificate_of(parts, settings) if parts.scheme in PORTS and parts.hostname else b""
        except (OSError, ValueError):  # includes values that are not URLs, such as other catalog properties
            continue
        if seen:
            from cryptography import x509  # slow import, only needed with certificates

            yield f"{name} ({parts.hostname})", x509.load_der_x509_certificate(seen).not_valid_after_utc.timestamp()


def _certificate_of(parts: SplitResult, settings: Settings) -> bytes:
    """Fetch a server's certificate, even if untrusted. Presents our own certificate to servers that require one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    query = {option: files[0] for option, files in parse_qs(parts.query).items()}
    own = query.get("ssl_certfile") or query.get("certfile") or settings.tls_certificate
    if own:
        context.load_cert_chain(own, query.get("ssl_keyfile") or query.get("keyfile") or settings.tls_key or None)
    host = parts.hostname or ""
    with create_connection((host, parts.port or PORTS[parts.scheme]), WAIT_S) as plain:
        plain.settimeout(WAIT_S)
        with context.wrap_socket(plain, server_hostname=host) as connection:
            return connection.getpeercert(binary_form=True) or b""


def _day(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d}"
