"""The addresses named by settings, and which of them are plaintext. Pure."""

from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

from manifold.contracts import catalog_properties
from manifold.contracts.http_access import is_loopback
from manifold.contracts.redis_url import split_redis_url
from manifold.settings.joined import Settings

# TLS scheme by plaintext scheme.
TLS_SCHEME_OF = {"mqtt": "mqtts", "tcp": "mqtts", "redis": "rediss", "amqp": "amqps", "http": "https"}
VERIFYING_MODES = {"verify-ca", "verify-full"}  # values of sslmode with which PostgreSQL's client verifies the server
# URL options that can disable certificate verification in the clients of Redis and RabbitMQ, with their safe values.
VERIFICATION_OPTIONS = {
    "rediss": {"ssl_cert_reqs": {"required"}, "ssl_check_hostname": {"true", "1"}},
    "amqps": {"no_verify_ssl": {"0"}},
}


def plaintext_errors(settings: Settings) -> list[str]:
    """Return an error, without secrets, for each setting that makes a process connect or listen in plaintext beyond loopback."""
    errors: list[str] = []
    for name, url in addresses(settings):
        problem = _problem_of(url)
        if problem:
            errors.append(f"MANIFOLD_{name.upper()} {problem}")
    listens_on_loopback = is_loopback(settings.host) and is_loopback(settings.api_listens)
    if not settings.http_tls_files.certificate and not listens_on_loopback:
        errors.append("MANIFOLD_HTTP_CERTIFICATE must name a certificate, because HTTP listens beyond loopback")
    return errors


def addresses(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the name of each setting with the URL of a server, and the URL. URLs may be empty, and may contain secrets."""
    redis_url, _ = split_redis_url(settings.redis_url.get_secret_value())
    signals_redis_url, _ = split_redis_url(settings.signals_redis_url.get_secret_value())
    yield "mqtt_url", settings.mqtt
    yield "mqtt_vehicle_url", settings.mqtt_vehicle_url
    yield "emqx_api_url", settings.emqx_api_url
    yield "redis_url", redis_url
    yield "signals_redis_url", signals_redis_url
    yield "signals_amqp_url", settings.signals_amqp_url.get_secret_value()
    yield "signals_operator_url", settings.signals_operator_url.get_secret_value()
    yield "signals_traces_url", settings.signals_traces_url
    yield "s3_endpoint", settings.s3_endpoint
    yield "catalog_uri", settings.catalog_uri.get_secret_value()
    yield "api_url", settings.api_url
    yield "lineage_url", settings.lineage_url.get_secret_value()
    yield "alert_url", settings.alert_url.get_secret_value()
    for url in settings.recorder_urls.split(","):
        yield "recorder_urls", url
    for url in catalog_properties.read(settings.catalog_properties.get_secret_value()).values():
        yield "catalog_properties", url


def _problem_of(url: str) -> str:
    """Return what must be changed in the URL, as the end of an error message; empty if nothing must be changed."""
    try:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        # In a PostgreSQL URL these options take precedence over the URL's host.
        hosts = [parts.hostname or "", *query.get("host", []), *query.get("hostaddr", [])]
    except ValueError:  # not a URL: catalog properties may have any value
        return ""
    if all(not host or host.startswith("/") or is_loopback(host) for host in hosts):  # a path is that of a local socket
        return ""
    if parts.scheme.startswith("postgresql"):
        modes = set(query.get("sslmode", []))
        verifies_server = bool(modes) and modes <= VERIFYING_MODES
        return "" if verifies_server else "must ask for sslmode=verify-full"
    for option, safe_values in VERIFICATION_OPTIONS.get(parts.scheme, {}).items():
        values = {value.lower() for value in query.get(option, [])}
        if values - safe_values:
            return f"must not set {option}, which disables certificate verification"
    tls_scheme = TLS_SCHEME_OF.get(parts.scheme)
    return "" if tls_scheme is None else f"must begin with {tls_scheme}://"
