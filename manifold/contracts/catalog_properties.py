"""Iceberg catalog properties that have no setting of their own, held in one setting: a JSON object of strings.

PyIceberg and Iceberg's Java side share most names: `token`, `credential`, `oauth2-server-uri`, `scope`, `rest.sigv4-enabled`,
`header.…`, `s3.…`. Each engine ignores the names that it does not know.
"""

import json
from collections.abc import Iterator, Mapping

# Properties that have a setting of their own. They are refused here, because two sources could contradict each other.
SETTING_OF_PROPERTY = {
    "name": "catalog_name",
    "type": "catalog_type",
    "catalog-impl": "catalog_type",
    "py-catalog-impl": "catalog_type",
    "uri": "catalog_uri",
    "warehouse": "warehouse",
}
SHAPE = 'must be a JSON object of texts, such as {"credential": "<id>:<secret>", "scope": "lake"}'
SIGV4 = "rest.sigv4-enabled"
# Timeouts in seconds for a PostgreSQL catalog: JDBC driver properties, with Iceberg's prefix `jdbc.`. A healthy
# server replies within milliseconds.
JDBC_CONNECT, JDBC_ANSWER = "jdbc.connectTimeout", "jdbc.socketTimeout"
JDBC_DEFAULT_S = {JDBC_CONNECT: "10", JDBC_ANSWER: "60"}


def normalised(value: object) -> str:
    """Return the properties in `value` as the text of a JSON object of strings; empty if there are no properties.

    `value` is JSON text or a TOML table. The names of nested tables are joined by dots.

    Raises:
        ValueError: `value` is neither of these, or a property has its own setting. The message contains no value, which may be a
            secret.
    """
    table = _parse_json(value) if isinstance(value, str) else value
    if not isinstance(table, Mapping):
        raise ValueError(SHAPE)
    properties = dict(_flattened(table))
    for name in properties:
        if name in SETTING_OF_PROPERTY:
            raise ValueError(f"must not have {name}, which is the setting {SETTING_OF_PROPERTY[name]}")
    return json.dumps(properties) if properties else ""


def read(text: str) -> dict[str, str]:
    """Return the properties in a text made by `normalised`."""
    return dict(json.loads(text)) if text else {}


def uses_sigv4(properties: Mapping[str, str]) -> bool:
    """Whether requests to the catalog are signed with AWS SigV4."""
    is_enabled = properties.get(SIGV4, "").lower() == "true"
    is_auth_type = properties.get("rest.auth.type", "").lower() == "sigv4"
    return is_enabled or is_auth_type


def _parse_json(text: str) -> object:
    """Parse JSON text; an empty text has no properties."""
    try:
        return json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        raise ValueError(SHAPE) from None  # the parser's own error would show the text, which may contain a secret


def _flattened(table: Mapping[object, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted name, which begins with `prefix`, and the value of each property in a table and its nested tables.

    Raises:
        ValueError: a value is of another type, such as a list or null.
    """
    for name, value in table.items():
        match value:
            case Mapping():
                yield from _flattened(value, f"{prefix}{name}.")
            case bool():  # before int, because a bool is an int
                yield f"{prefix}{name}", str(value).lower()
            case str() | int() | float():
                yield f"{prefix}{name}", str(value)
            case _:
                raise ValueError(f"{SHAPE}; {prefix}{name} is none")
