"""The OpenAPI document: FastAPI's description of the routes, with the possible errors of each route added."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from manifold.api._problems import MEDIA_TYPE, TITLES, Problem

ABOUT = """What Manifold knows of vehicles, batches, campaigns, compacted queues, data and refused messages, from the queues, the
archive and the lake. Two kinds of requests change something: the rewind of a compacted queue, and orders to campaigns, which need
a named token with their right. Beyond loopback every request needs a bearer token. Times are ISO 8601, UTC; a `seq` is a whole
number of up to 63 bits. Long answers come in pages: ask again with the `before` or `after` of a page for the next one."""
COMMON_STATUSES = (401, 403, 422, 500, 503)


def _failure(status: int) -> dict[str, Any]:
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {"description": TITLES[status], "content": content}


FAILURES: dict[int, dict[int | str, dict[str, Any]]] = {status: {status: _failure(status)} for status in TITLES}


def describe(app: FastAPI) -> None:
    """Let the application serve the OpenAPI document of this module. It is built on first use."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # FastAPI documents this way to replace it


def _document(app: FastAPI) -> dict[str, Any]:
    """Return FastAPI's OpenAPI document of the routes, with their possible errors as problem details, and the bearer token."""
    document = get_openapi(title="Manifold", version="1", description=ABOUT, routes=app.routes)
    components = document["components"]
    components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"bearer": []}, {}]  # {}: without a token, which is possible on loopback
    schemas = components["schemas"]
    for unused in ("HTTPValidationError", "ValidationError"):  # FastAPI's own errors, which problem details replace
        schemas.pop(unused, None)
    problem_schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    nested_schemas = problem_schema.pop("$defs")
    schemas |= nested_schemas | {"Problem": problem_schema}
    for methods in document["paths"].values():
        for operation in methods.values():
            own_statuses = [int(status) for status in operation["responses"] if int(status) >= 400]
            for status in sorted({*COMMON_STATUSES, *own_statuses}):
                operation["responses"][str(status)] = _failure(status)
    return document
