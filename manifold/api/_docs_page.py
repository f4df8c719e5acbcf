"""Renders the OpenAPI document as an HTML page, without scripts or external resources, so that it works offline."""

import json
import re
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup, escape

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
CODE = re.compile(r"`([^`]+)`")
BOUNDS = {"minimum": "at least {}", "maximum": "at most {}", "maxLength": "up to {} characters", "default": "default {}"}
MAX_BOUND = 1 << 62  # larger bounds are those of the integer type, and not worth showing


def docs_page(document: Mapping[str, Any]) -> str:
    """Return the HTML page of an OpenAPI document."""
    loader = PackageLoader("manifold.api", "pages")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"kind": _kind, "marked": _marked, "name_of": _name_of, "pretty": _pretty}
    return environment.get_template("docs.html").render(document, schemas=document["components"]["schemas"])


def _kind(schema: Mapping[str, Any]) -> str:
    """Describe the values of a schema in a few words, such as `list of Entry` or `integer, at least 1, at most 1000`."""
    if "$ref" in schema:
        return _name_of(schema["$ref"])
    if "anyOf" in schema:
        kinds_once = dict.fromkeys(map(_kind, schema["anyOf"]))
        return " or ".join(kinds_once)
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    bounds = [text.format(schema[name]) for name, text in BOUNDS.items() if _is_worth_showing(schema.get(name))]
    kinds = [str(schema[name]) for name in ("const", "format", "type") if name in schema]  # the most specific first
    kind = kinds[0] if kinds else "anything"
    return ", ".join([kind, *bounds])


def _is_worth_showing(bound: object) -> bool:
    """Whether a schema has this bound or default, and it is no bound of the integer type itself."""
    if bound is None:
        return False
    return not isinstance(bound, int | float) or bound <= MAX_BOUND


def _marked(text: str) -> Markup:
    """Escape the text for HTML, and mark up its parts in backticks as code."""
    return Markup(CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704  # escaped here


def _name_of(reference: str) -> str:
    """Return the last part of a reference such as `#/components/schemas/Entry`."""
    return reference.rpartition("/")[2]


def _pretty(example: object) -> str:
    return json.dumps(example, indent=2, ensure_ascii=False)
