"""Translates the address of an SQL catalog for Iceberg's Java side. Both engines must connect in the same way, or not at all."""

from urllib.parse import quote

from sqlalchemy.engine import URL, make_url

from manifold.contracts.catalog_properties import JDBC_DEFAULT_S
from manifold.contracts.errors import Permanent

# Connection parameter of libpq → that of PostgreSQL's JDBC driver; the values mean the same.
PARAMETERS = {
    "sslmode": "sslmode",
    "sslrootcert": "sslrootcert",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "sslpassword": "sslpassword",
    "sslnegotiation": "sslNegotiation",
    "channel_binding": "channelBinding",
    "gssencmode": "gssEncMode",
    "require_auth": "requireAuth",
    "options": "options",
    "application_name": "ApplicationName",
    "connect_timeout": "connectTimeout",
}
# Keepalives and encoding: the JDBC driver has its own, and ignoring these does no harm.
IGNORED_PARAMETERS = (
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
    "client_encoding",
)


def jdbc(uri: str) -> dict[str, str]:
    """The JDBC catalog properties for an SQLAlchemy address, as PyIceberg takes it, with the parameters of its query.

    Raises:
        Permanent: Spark cannot connect as the address says; the message names the parameter, and no value.
    """
    url = make_url(uri)
    if url.get_backend_name() == "sqlite":
        return {"uri": f"jdbc:sqlite:{url.database}?busy_timeout=30000&journal_mode=WAL"}
    if not url.host:
        raise Permanent("MANIFOLD_CATALOG_URI names no host before its query; Spark's driver knows no socket files: name one")
    host = f"[{url.host}]" if ":" in url.host else url.host
    database = quote(url.database or "", safe="")
    address = f"jdbc:{url.get_backend_name()}://{host}{f':{url.port}' if url.port else ''}/{database}"
    login = {"jdbc.user": url.username, "jdbc.password": str(url.password) if url.password else None}
    given = {"uri": address, **{name: value for name, value in login.items() if value}}
    return given | JDBC_DEFAULT_S | {f"jdbc.{name}": value for name, value in _parameters(url).items()}


def _parameters(url: URL) -> dict[str, str]:
    found = {}
    for name, value in url.query.items():
        if name in IGNORED_PARAMETERS:
            continue
        if name not in PARAMETERS or not isinstance(value, str):
            raise Permanent(
                f"MANIFOLD_CATALOG_URI sets {name}, which Spark's JDBC driver does not support, so it would connect "
                f"differently; remove it. Supported are {', '.join(PARAMETERS)}, each once"
            )
        found[PARAMETERS[name]] = value
    return found
