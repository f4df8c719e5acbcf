"""Connections of Airflow as settings of jobs: addresses and credentials of catalog, store, Redis, recorder and API.

A connection that exists replaces the variables of the environment; without it they stay as they are. A job gets
them in its environment, never on a command line.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote

from airflow.sdk import Connection

from manifold.settings import DEFAULT_FILE

PREFIX = "MANIFOLD_"
HTTP = ("http", "https")
SPARK_CONNECT = "spark_connect"  # the type of a connection
CONNECT = "sc://"
TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  # the variable's name: PySpark reads it


def catalog(connection: Connection) -> dict[str, str]:
    """A REST catalog (`http`, `https`, or `iceberg` with the whole address as its host), or PostgreSQL (`postgres`).

    Properties of the catalog are the field `properties`. Login and password of a REST catalog are its `credential`, a password
    alone is its `token`.
    """
    extra = connection.extra_dejson
    further = {"CATALOG_NAME": extra.get("name", ""), "WAREHOUSE": extra.get("warehouse", "")}
    if (connection.conn_type or "").startswith("postgres"):
        address = f"postgresql+psycopg://{_login(connection)}{_host(connection)}/{connection.schema or ''}"
        return {"CATALOG_TYPE": "sql", "CATALOG_URI": address, **further}
    properties = _login_of_rest(connection) | dict(extra.get("properties") or {})
    further["CATALOG_PROPERTIES"] = json.dumps(properties) if properties else ""
    return {"CATALOG_TYPE": "rest", "CATALOG_URI": _web(connection), **further}


def _login_of_rest(connection: Connection) -> dict[str, str]:
    if not connection.password:
        return {}
    return {"credential": f"{connection.login}:{connection.password}"} if connection.login else {"token": connection.password}


def store(connection: Connection) -> dict[str, str]:
    """An S3-compatible store, as Airflow's type `aws` has it; its fields `archive`, `warehouse` and `reports` are URLs."""
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
    """Redis; `ssl` and `cluster` among its fields say how it is talked to, `db` (or the schema) names the database."""
    extra = connection.extra_dejson
    scheme = "rediss" if _is_true(extra.get("ssl")) else "redis"
    if _is_true(extra.get("cluster")):
        return {"REDIS_URL": f"{scheme}+cluster://{_login(connection)}{_host(connection)}"}
    return {"REDIS_URL": f"{scheme}://{_login(connection)}{_host(connection)}/{extra.get('db', connection.schema or 0)}"}


def recorder(connection: Connection) -> dict[str, str]:
    """HTTP of every recorder; the host may be several, with commas between."""
    hosts = [host.strip() for host in (connection.host or "").split(",") if host.strip()]
    return {"RECORDER_URLS": ",".join(_web(connection, host) for host in hosts)}


def api(connection: Connection) -> dict[str, str]:
    """HTTP of Manifold's API; the password is a named token with the right to order for the users of Airflow."""
    return {"API_URL": _web(connection), "API_TOKEN": connection.password or ""}


def spark_connect(connection: Connection) -> dict[str, str]:
    """A Spark Connect server, as variables of a job that is its client; the password is the token, the login the user.

    Its host may be the whole address, `sc://host:port/;use_ssl=true`.
    """
    at = connection.host or ""
    if "://" not in at:
        said = {"user_id": connection.login, "use_ssl": "true" if _is_true(connection.extra_dejson.get("use_ssl")) else ""}
        parameters = "".join(f";{name}={quote(value, safe='')}" for name, value in said.items() if value)
        at = f"{CONNECT}{_host(connection)}/{parameters}"
    return {f"{PREFIX}SPARK_MASTER": at} | ({TOKEN: connection.password} if connection.password else {})


CONNECTIONS: Mapping[str, Callable[[Connection], dict[str, str]]] = {
    "manifold_catalog": catalog,
    "manifold_store": store,
    "manifold_redis": redis,
    "manifold_recorder": recorder,
    "manifold_api": api,
}


def settings_of(find: Callable[[str], Connection | None]) -> dict[str, str]:
    """Variables of the environment that the connections give; `find` knows them by name. Empty fields say nothing."""
    environment: dict[str, str] = {}
    for name, read in CONNECTIONS.items():
        connection = find(name)
        if connection is not None:
            environment |= {f"{PREFIX}{setting}": value for setting, value in read(connection).items() if value}
    return environment


def write_file(settings: Mapping[str, str], folder: Path) -> Path:
    """A file of settings in `folder` that only this user may read, under the name that a job looks for where it runs."""
    file = folder / DEFAULT_FILE
    file.touch(mode=0o600)
    file.write_text("".join(f"{name.removeprefix(PREFIX).lower()} = {json.dumps(value)}\n" for name, value in settings.items()))
    return file


def _web(connection: Connection, host: str | None = None) -> str:
    at = host or connection.host or ""
    if "://" in at:
        return at.rstrip("/")
    scheme = connection.schema or (connection.conn_type if connection.conn_type in HTTP else "http")
    return f"{scheme}://{at}{f':{connection.port}' if connection.port else ''}"


def _host(connection: Connection) -> str:
    return f"{connection.host or ''}{f':{connection.port}' if connection.port else ''}"


def _login(connection: Connection) -> str:
    user, password = (quote(part or "", safe="") for part in (connection.login, connection.password))
    return f"{user}:{password}@" if password else f"{user}@" if user else ""


def _is_true(value: object) -> bool:
    return str(value).lower() in {"true", "1", "yes"}
