"""Iceberg catalog properties that have no setting of their own, held in one setting: a JSON object of strings.

PyIceberg and Iceberg's Java side share most names: `token`, `credential`, `oauth2-server-uri`, `scope`, `rest.sigv4-enabled`,
`header.…`, `s3.…`. Each engine ignores the names that it does not know.
"""

import json
from collections.abc import Iterator, Mapping

# Properties that have their own setting; a second source would contradict it some day.
DECIDED = {
    "name": "catalog_name",
    "type": "catalog_type",
    "catalog-impl": "catalog_type",
    "py-catalog-impl": "catalog_type",
    "uri": "catalog_uri",
    "warehouse": "warehouse",
}
SHAPE = 'must be a JSON object of texts, such as {"credential": "<id>:<secret>", "scope": "lake"}'
SIGV4 = "rest.sigv4-enabled"
# Timeouts in seconds for a PostgreSQL catalog: JDBC driver properties, after Iceberg's prefix `jdbc.`. Replies take milliseconds.
JDBC_CONNECT, JDBC_ANSWER = "jdbc.connectTimeout", "jdbc.socketTimeout"
JDBC_DEFAULT_S = {JDBC_CONNECT: "10", JDBC_ANSWER: "60"}


def normalised(value: object) -> str:
    """Normalise the setting to a JSON object of strings; accepts JSON text, or a TOML table with nested dots. Empty: none.

    Raises:
        ValueError: it is neither, or a property has its own setting. The message contains no value, which may be a secret.
    """
    if isinstance(value, str):
        value = _object(value)
    if not isinstance(value, Mapping):
        raise ValueError(SHAPE)
    properties = dict(_flat(value))
    for name in properties:
        if name in DECIDED:
            raise ValueError(f"must not have {name}, which is the setting {DECIDED[name]}")
    return json.dumps(properties) if properties else ""


def read(text: str) -> dict[str, str]:
    """Return the properties in a text made by `normalised`."""
    return dict(json.loads(text)) if text else {}


def signs(properties: Mapping[str, str]) -> bool:
    """Whether requests to the catalog are signed with AWS SigV4."""
    return properties.get(SIGV4, "").lower() == "true" or properties.get("rest.auth.type", "").lower() == "sigv4"


def _object(text: str) -> object:
    try:
        return json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        raise ValueError(SHAPE) from None  # the parser's own message has the text in it


def _flat(table: Mapping[object, object], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in table.items():
        match value:
            case Mapping():
                yield from _flat(value, f"{before}{name}.")
            case bool():
                yield f"{before}{name}", str(value).lower()
            case str() | int() | float():
                yield f"{before}{name}", str(value)
            case _:
                raise ValueError(f"{SHAPE}; {before}{name} is none")
