"""Translates the address of an SQL catalog from SQLAlchemy, which PyIceberg uses, to JDBC, which Spark uses.

Both must connect in the same way. An address that JDBC cannot express is refused.
"""

from urllib.parse import quote

from sqlalchemy.engine import URL, make_url

from manifold.contracts.catalog_properties import JDBC_DEFAULT_S
from manifold.contracts.errors import Permanent

# Connection parameter of libpq → parameter of PostgreSQL's JDBC driver with the same values and meaning.
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
# Keepalives and encoding: the JDBC driver has its own defaults for them, so these parameters of libpq can be ignored.
IGNORED_PARAMETERS = (
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
    "client_encoding",
)


def jdbc_properties(uri: str) -> dict[str, str]:
    """The properties of a JDBC catalog for an SQLAlchemy address, including the parameters in its query.

    Raises:
        Permanent: Spark's JDBC driver does not support a part of the address. The message names the part without its value.
    """
    url = make_url(uri)
    if url.get_backend_name() == "sqlite":
        return {"uri": f"jdbc:sqlite:{url.database}?busy_timeout=30000&journal_mode=WAL"}
    if not url.host:
        raise Permanent("MANIFOLD_CATALOG_URI names no host before its query; Spark's driver knows no socket files: name one")
    host = f"[{url.host}]" if ":" in url.host else url.host
    database = quote(url.database or "", safe="")
    port = f":{url.port}" if url.port else ""
    properties = {"uri": f"jdbc:{url.get_backend_name()}://{host}{port}/{database}"}
    if url.username:
        properties["jdbc.user"] = url.username
    if url.password:
        properties["jdbc.password"] = str(url.password)
    parameters = {f"jdbc.{name}": value for name, value in _jdbc_parameters(url).items()}
    return properties | JDBC_DEFAULT_S | parameters  # a timeout in the address replaces the default


def _jdbc_parameters(url: URL) -> dict[str, str]:
    """The parameters of the address's query, under the names that the JDBC driver has for them."""
    parameters = {}
    for name, value in url.query.items():
        if name in IGNORED_PARAMETERS:
            continue
        if name not in PARAMETERS or not isinstance(value, str):  # a parameter that is set twice has a tuple of values
            raise Permanent(
                f"MANIFOLD_CATALOG_URI sets {name}, which Spark's JDBC driver does not support, so it would connect "
                f"differently; remove it. Supported are {', '.join(PARAMETERS)}, each once"
            )
        parameters[PARAMETERS[name]] = value
    return parameters
