"""Errors as problem details (RFC 9457): what went wrong, the value, and the remedy."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException

from manifold.contracts.errors import Permanent, Retryable

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 5  # the value of the header Retry-After
MAX_SHOWN_CHARACTERS = 200  # of an invalid value that a problem quotes
TITLES = {  # reason phrases of RFC 9110, as RFC 9457 requires for problems without their own type
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    412: "Precondition Failed",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    422: "Unprocessable Content",
    500: "Internal Server Error",
    503: "Service Unavailable",
}

log = structlog.get_logger(__name__)


class Missing(Permanent):
    """The requested object does not exist."""


class WrongParameter(BaseModel):
    """One invalid parameter."""

    name: str = Field(description="the parameter; `body` where the body as a whole is wrong")
    place: str = Field(description="where it stands: `path`, `query` or `body`")
    value: str = Field(description="what was given, cut where it is long")
    problem: str = Field(description="what is wrong with it")


class Problem(BaseModel):
    """Problem details (RFC 9457): why a request failed."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "type": "about:blank",
                "title": TITLES[422],
                "status": 422,
                "detail": "limit=0: input should be greater than or equal to 1",
                "errors": [
                    {"name": "limit", "place": "query", "value": "0", "problem": "input should be greater than or equal to 1"}
                ],
            }
        }
    )

    type: str = Field(description="always `about:blank`: the status says which kind of problem it is")
    title: str = Field(description="the phrase of the status")
    status: int = Field(description="the status of the response")
    detail: str = Field(description="what happened, and what to do")
    errors: list[WrongParameter] | None = Field(default=None, description="of 422: each parameter that is wrong")


def problem(
    status: int, detail: str, *, headers: Mapping[str, str] | None = None, errors: Sequence[Mapping[str, str]] = ()
) -> Response:
    """Build a response with these problem details."""
    body: dict[str, Any] = {"type": "about:blank", "title": TITLES.get(status, "Error"), "status": status, "detail": detail}
    if errors:
        body["errors"] = list(errors)
    return Response(orjson.dumps(body), status, headers, MEDIA_TYPE)


def unexpected_error_response() -> Response:
    """Build the response to an unexpected error. It contains no details; they are only in the log."""
    return problem(500, "unexpected error; see the API's log")


def register_problem_handlers(app: FastAPI) -> None:
    """Register handlers that turn every expected error into a response with problem details."""

    @app.exception_handler(HTTPException)
    async def http_problem(request: Request, exc: HTTPException) -> Response:
        if exc.status_code == 400:  # FastAPI's status for a body that is not valid UTF-8
            return problem(422, "the body is not JSON in UTF-8")
        detail = str(exc.detail)
        if exc.status_code == 404:
            detail = f"there is no {_shortened(request.url.path)} here; /api/v1/openapi.json lists what there is"
        elif exc.status_code == 405:
            allowed = exc.headers["Allow"] if exc.headers else "GET"
            detail = f"{request.method} is not offered; {allowed} is"
        return problem(exc.status_code, detail, headers=exc.headers)

    @app.exception_handler(RequestValidationError)
    async def validation_problem(_: Request, exc: RequestValidationError) -> Response:
        errors = [_field_error(error) for error in exc.errors()]
        return problem(422, "; ".join(map(_sentence, errors)), errors=errors)

    @app.exception_handler(Missing)
    async def missing_problem(_: Request, exc: Missing) -> Response:
        return problem(404, str(exc))

    @app.exception_handler(Permanent)
    async def permanent_problem(request: Request, exc: Permanent) -> Response:
        log.error("request failed; retrying cannot help", method=request.method, path=request.url.path, reason=str(exc))
        return problem(503, str(exc))

    @app.exception_handler(Retryable)
    async def retryable_problem(_: Request, exc: Retryable) -> Response:
        return problem(503, str(exc), headers={"Retry-After": str(RETRY_AFTER_S)})

    @app.exception_handler(RedisError)
    async def redis_problem(request: Request, exc: RedisError) -> Response:
        log.warning("request failed; redis cannot be read", method=request.method, path=request.url.path, reason=repr(exc))
        detail = f"the queues cannot be read ({type(exc).__name__}); see `manifold status`, then ask again"
        return problem(503, detail, headers={"Retry-After": str(RETRY_AFTER_S)})


def _field_error(error: Mapping[str, Any]) -> dict[str, str]:
    """Convert a validation error of FastAPI to the fields of a `WrongParameter`."""
    place, *path = (str(part) for part in error["loc"])
    if error["type"] == "json_invalid":  # such an error has no value, and its path is the position in the body
        reason = f"is not JSON: {error['ctx']['error']} at character {path[0]}"
        return {"name": place, "place": place, "value": "", "problem": reason}
    message = str(error["msg"])
    begins_with_acronym = message[:2].isupper()
    if not begins_with_acronym:
        message = message[:1].lower() + message[1:]
    name = ".".join(path) or place  # without a path, the whole body is invalid
    return {"name": name, "place": place, "value": _shortened(str(error["input"])), "problem": message}


def _sentence(field_error: Mapping[str, str]) -> str:
    """Format a field error as `name=value: problem`; an error of the whole body without a value, as `name: problem`."""
    name, value = field_error["name"], field_error["value"]
    is_whole_body = name == field_error["place"]
    subject = name if is_whole_body and not value else f"{name}={value}"
    return f"{subject}: {field_error['problem']}"


def _shortened(text: str) -> str:
    """Return the text as valid Unicode, cut after `MAX_SHOWN_CHARACTERS`."""
    plain = text.encode(errors="replace").decode()
    return plain if len(plain) <= MAX_SHOWN_CHARACTERS else f"{plain[:MAX_SHOWN_CHARACTERS]}…"
