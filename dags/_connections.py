"""Turns Airflow connections into settings of jobs: addresses and credentials of catalog, store, Redis, recorder and API.

If a connection exists, its settings replace the environment variables of the same names; otherwise these variables stay
unchanged. A job gets the settings in its environment, never on a command line.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote

from airflow.sdk import Connection

from manifold.settings import DEFAULT_FILE

PREFIX = "MANIFOLD_"
HTTP = ("http", "https")
SPARK_CONNECT = "spark_connect"  # Airflow's type of a connection to a Spark Connect server
CONNECT_SCHEME = "sc://"
TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  # the name of the environment variable that PySpark reads


def catalog(connection: Connection) -> dict[str, str]:
    """Settings of the Iceberg catalog.

    The connection's type says which catalog: `postgres` is an SQL catalog in PostgreSQL; `http`, `https` and `iceberg` are a REST
    catalog, whose whole address may be in the field host. The field `properties` has further catalog properties. A REST catalog
    gets login and password as its property `credential`, or a password without a login as its property `token`.
    """
    extra = connection.extra_dejson
    settings = {"CATALOG_NAME": extra.get("name", ""), "WAREHOUSE": extra.get("warehouse", "")}
    if (connection.conn_type or "").startswith("postgres"):
        address = f"postgresql+psycopg://{_user_info(connection)}{_host_and_port(connection)}/{connection.schema or ''}"
        return settings | {"CATALOG_TYPE": "sql", "CATALOG_URI": address}
    properties = _rest_login(connection) | dict(extra.get("properties") or {})
    return settings | {
        "CATALOG_TYPE": "rest",
        "CATALOG_URI": _http_url(connection),
        "CATALOG_PROPERTIES": json.dumps(properties) if properties else "",
    }


def _rest_login(connection: Connection) -> dict[str, str]:
    """The property with which a REST catalog logs in; empty if the connection has no password."""
    if not connection.password:
        return {}
    if connection.login:
        return {"credential": f"{connection.login}:{connection.password}"}
    return {"token": connection.password}


def store(connection: Connection) -> dict[str, str]:
    """Settings of the S3-compatible store, from a connection of type `aws`.

    The connection's fields `archive`, `warehouse` and `reports` are URLs.
    """
    extra = connection.extra_dejson
    return {
        "S3_ACCESS_KEY": connection.login or "",
        "S3_SECRET_KEY": connection.password or "",
        "S3_ENDPOINT": extra.get("endpoint_url", ""),
        "S3_REGION": extra.get("region_name", ""),
        "ARCHIVE_URL": extra.get("archive", ""),
        "WAREHOUSE": extra.get("warehouse", ""),
        "REPORTS": extra.get("reports", ""),
    }


def redis(connection: Connection) -> dict[str, str]:
    """The URL of Redis.

    If the connection's fields `ssl` and `cluster` are true, the URL names TLS and a cluster. The field `db`, or else the schema,
    is the number of the database; a cluster has only one database.
    """
    extra = connection.extra_dejson
    scheme = "rediss" if _is_true(extra.get("ssl")) else "redis"
    address = f"{_user_info(connection)}{_host_and_port(connection)}"
    if _is_true(extra.get("cluster")):
        return {"REDIS_URL": f"{scheme}+cluster://{address}"}
    database = extra.get("db", connection.schema or 0)
    return {"REDIS_URL": f"{scheme}://{address}/{database}"}


def recorder(connection: Connection) -> dict[str, str]:
    """The HTTP addresses of all recorders; the connection's host may list several hosts, separated by commas."""
    hosts = [host.strip() for host in (connection.host or "").split(",") if host.strip()]
    return {"RECORDER_URLS": ",".join(_http_url(connection, host) for host in hosts)}


def api(connection: Connection) -> dict[str, str]:
    """The HTTP address and the token of Manifold's API. The password is a named token that may order for the users of Airflow."""
    return {"API_URL": _http_url(connection), "API_TOKEN": connection.password or ""}


def spark_connect(connection: Connection) -> dict[str, str]:
    """The environment variables of a job that is a client of this Spark Connect server.

    The connection's login is the user, its password the token. Its host may be the whole address,
    `sc://host:port/;use_ssl=true`.
    """
    address = connection.host or ""
    if "://" not in address:
        use_ssl = "true" if _is_true(connection.extra_dejson.get("use_ssl")) else ""
        parameters = {"user_id": connection.login, "use_ssl": use_ssl}
        suffix = "".join(f";{name}={quote(value, safe='')}" for name, value in parameters.items() if value)
        address = f"{CONNECT_SCHEME}{_host_and_port(connection)}/{suffix}"
    variables = {f"{PREFIX}SPARK_MASTER": address}
    if connection.password:
        variables[TOKEN] = connection.password
    return variables


# For each connection id, the function that reads its settings, named without `MANIFOLD_`.
CONNECTIONS: Mapping[str, Callable[[Connection], dict[str, str]]] = {
    "manifold_catalog": catalog,
    "manifold_store": store,
    "manifold_redis": redis,
    "manifold_recorder": recorder,
    "manifold_api": api,
}


def variables_from_connections(find: Callable[[str], Connection | None]) -> dict[str, str]:
    """The environment variables for the settings in all existing connections, without settings whose value is empty.

    `find` returns the connection of an id, or None if there is none.
    """
    variables: dict[str, str] = {}
    for connection_id, read_settings in CONNECTIONS.items():
        connection = find(connection_id)
        if connection is not None:
            settings = read_settings(connection)
            variables |= {f"{PREFIX}{setting}": value for setting, value in settings.items() if value}
    return variables


def write_settings_file(variables: Mapping[str, str], folder: Path) -> Path:
    """Write these environment variables to a settings file in `folder`, which only this user may read; return its path.

    The file has the name that a job looks for in its working directory.
    """
    file = folder / DEFAULT_FILE
    file.touch(mode=0o600)  # before anything is written, because the values may be secret
    lines = [f"{name.removeprefix(PREFIX).lower()} = {json.dumps(value)}\n" for name, value in variables.items()]
    file.write_text("".join(lines))
    return file


def _http_url(connection: Connection, host: str | None = None) -> str:
    """The URL of `host`, by default the connection's. A host that is a URL already is returned without trailing slashes."""
    address = host or connection.host or ""
    if "://" in address:
        return address.rstrip("/")
    default_scheme = connection.conn_type if connection.conn_type in HTTP else "http"
    scheme = connection.schema or default_scheme  # in Airflow's HTTP connections, the field `schema` has the scheme
    return f"{scheme}://{address}{_port_suffix(connection)}"


def _host_and_port(connection: Connection) -> str:
    return f"{connection.host or ''}{_port_suffix(connection)}"


def _port_suffix(connection: Connection) -> str:
    return f":{connection.port}" if connection.port else ""


def _user_info(connection: Connection) -> str:
    """The part of a URL with user and password, including the @; empty if the connection has neither."""
    user = quote(connection.login or "", safe="")
    password = quote(connection.password or "", safe="")
    if password:
        return f"{user}:{password}@"
    return f"{user}@" if user else ""


def _is_true(value: object) -> bool:
    return str(value).lower() in {"true", "1", "yes"}
