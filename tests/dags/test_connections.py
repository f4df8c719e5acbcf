"""Airflow connections become Manifold settings."""

import json
from typing import Any

import pytest
from airflow.sdk import Connection

from dags._connections import CONNECTIONS, variables_from_connections
from manifold.settings import load_settings

AWS = {"endpoint_url": "http://s3.example:7070", "region_name": "eu-west-1", "reports": "s3://lake/reports"}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "REST": (
        "catalog",
        {"conn_type": "https", "host": "rest.example"},
        {"CATALOG_TYPE": "rest", "CATALOG_URI": "https://rest.example"},
    ),
    "REST, by its address": (
        "catalog",
        {"conn_type": "iceberg", "host": "https://rest.example/v1/", "extra": json.dumps({"warehouse": "s3://lake/w"})},
        {"CATALOG_TYPE": "rest", "CATALOG_URI": "https://rest.example/v1", "WAREHOUSE": "s3://lake/w"},
    ),
    "REST, with a login": (
        "catalog",
        {
            "conn_type": "iceberg",
            "host": "https://rest.example",
            "login": "me",
            "password": "s:cret",
            "extra": json.dumps({"warehouse": "fleet", "properties": {"scope": "lake", "oauth2-server-uri": "https://idp"}}),
        },
        {
            "CATALOG_TYPE": "rest",
            "CATALOG_URI": "https://rest.example",
            "WAREHOUSE": "fleet",
            "CATALOG_PROPERTIES": json.dumps({"credential": "me:s:cret", "scope": "lake", "oauth2-server-uri": "https://idp"}),
        },
    ),
    "REST, with a token": (
        "catalog",
        {"conn_type": "https", "host": "rest.example", "password": "t0ken"},
        {"CATALOG_TYPE": "rest", "CATALOG_URI": "https://rest.example", "CATALOG_PROPERTIES": json.dumps({"token": "t0ken"})},
    ),
    "PostgreSQL": (
        "catalog",
        {"conn_type": "postgres", "host": "pg", "port": 5432, "schema": "lake", "login": "m", "password": "p@ss/word"},
        {"CATALOG_TYPE": "sql", "CATALOG_URI": "postgresql+psycopg://m:p%40ss%2Fword@pg:5432/lake"},
    ),
    "S3": (
        "store",
        {"conn_type": "aws", "login": "key", "password": "secret", "extra": json.dumps(AWS)},
        {
            "S3_ACCESS_KEY": "key",
            "S3_SECRET_KEY": "secret",
            "S3_ENDPOINT": "http://s3.example:7070",
            "S3_REGION": "eu-west-1",
            "REPORTS": "s3://lake/reports",
        },
    ),
    "Redis": (
        "redis",
        {"conn_type": "redis", "host": "r", "port": 6379, "extra": json.dumps({"db": 3})},
        {"REDIS_URL": "redis://r:6379/3"},
    ),
    "Redis Cluster with TLS": (
        "redis",
        {
            "conn_type": "redis",
            "host": "r",
            "port": 6379,
            "login": "u",
            "password": "p",
            "extra": json.dumps({"cluster": True, "ssl": "true"}),
        },
        {"REDIS_URL": "rediss+cluster://u:p@r:6379"},
    ),
    "several recorders": (
        "recorder",
        {"conn_type": "http", "host": "a, b", "port": 9101},
        {"RECORDER_URLS": "http://a:9101,http://b:9101"},
    ),
}


@pytest.mark.parametrize(("name", "fields", "settings"), CASES.values(), ids=[*CASES])
def test_a_connection_becomes_settings(
    name: str, fields: dict[str, Any], settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = Connection(conn_id=f"manifold_{name}", **fields)

    found = variables_from_connections(lambda known: connection if known == connection.conn_id else None)

    assert found == {f"MANIFOLD_{setting}": value for setting, value in settings.items()}
    for variable, value in found.items():
        monkeypatch.setenv(variable, value)
    load_settings()


def test_without_connections_the_environment_is_unchanged() -> None:
    assert variables_from_connections(lambda _: None) == {}
    assert set(CONNECTIONS) == {"manifold_catalog", "manifold_store", "manifold_redis", "manifold_recorder", "manifold_api"}
