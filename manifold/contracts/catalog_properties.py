"""Properties of an Iceberg catalog that have no setting of their own, as one setting holds them: a JSON object of texts.

PyIceberg and Iceberg's Java side share most names: `token`, `credential`, `oauth2-server-uri`, `scope`, `rest.sigv4-enabled`,
`header.…`, `s3.…`. Each engine passes over the names that only the other one knows.
"""

import json
from collections.abc import Iterator, Mapping

# What settings decide, by property: two answers to one question would differ some day.
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
# Limits of a PostgreSQL catalog in seconds, as its JDBC driver names them behind Iceberg's `jdbc.`; answers take milliseconds.
JDBC_CONNECT, JDBC_ANSWER = "jdbc.connectTimeout", "jdbc.socketTimeout"
JDBC_DEFAULT_S = {JDBC_CONNECT: "10", JDBC_ANSWER: "60"}


def normalised(value: object) -> str:
    """The JSON object of texts that `value` means: such an object as text, or a table of TOML, whose dots nest. Empty: none.

    Raises:
        ValueError: it is neither; or a property has a setting of its own. The message shows no value.
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
    """The properties in a text that `normalised` gave."""
    return dict(json.loads(text)) if text else {}


def signs(properties: Mapping[str, str]) -> bool:
    """Whether requests to the catalog are signed as AWS does (SigV4)."""
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
