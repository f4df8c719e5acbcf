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
AGAIN_S = 5  # Retry-After in seconds
SHOWN = 200  # characters quoted of an invalid value
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
    """One parameter that is wrong."""

    name: str = Field(description="the parameter; `body` where the body as a whole is wrong")
    place: str = Field(description="where it stands: `path`, `query` or `body`")
    value: str = Field(description="what was given, cut where it is long")
    problem: str = Field(description="what is wrong with it")


class Problem(BaseModel):
    """Why there is no answer (RFC 9457)."""

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


def failed() -> Response:
    """Build the response to an unexpected error. The details are only in the log."""
    return problem(500, "unexpected error; see the API's log")


def register_problem_handlers(app: FastAPI) -> None:
    """Register handlers that turn every error into a problem."""

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, exc: HTTPException) -> Response:
        details = {
            404: f"there is no {_shortened(request.url.path)} here; /api/v1/openapi.json lists what there is",
            405: f"{request.method} is not offered; {exc.headers['Allow'] if exc.headers else 'GET'} is",
        }
        if exc.status_code == 400:  # FastAPI's status for a body that is not valid UTF-8
            return problem(422, "the body is not JSON in UTF-8")
        return problem(exc.status_code, details.get(exc.status_code, str(exc.detail)), headers=exc.headers)

    @app.exception_handler(RequestValidationError)
    async def correct(_: Request, exc: RequestValidationError) -> Response:
        wrong = [_field_error(error) for error in exc.errors()]
        return problem(422, "; ".join(map(_sentence, wrong)), errors=wrong)

    @app.exception_handler(Missing)
    async def miss(_: Request, exc: Missing) -> Response:
        return problem(404, str(exc))

    @app.exception_handler(Permanent)
    async def change(_: Request, exc: Permanent) -> Response:
        log.error("permanent upstream error", reason=str(exc))
        return problem(503, str(exc))

    @app.exception_handler(Retryable)
    async def wait(_: Request, exc: Retryable) -> Response:
        return problem(503, str(exc), headers={"Retry-After": str(AGAIN_S)})

    @app.exception_handler(RedisError)
    async def without_queues(_: Request, exc: RedisError) -> Response:
        log.warning("the queues cannot be read", reason=repr(exc))
        detail = f"the queues cannot be read ({type(exc).__name__}); see `manifold status`, then ask again"
        return problem(503, detail, headers={"Retry-After": str(AGAIN_S)})


def _field_error(error: Mapping[str, Any]) -> dict[str, str]:
    place, *name = (str(part) for part in error["loc"])
    if error["type"] == "json_invalid":  # FastAPI puts the position into the name, and no value
        problem = f"is not JSON: {error['ctx']['error']} at character {name[0]}"
        return {"name": place, "place": place, "value": "", "problem": problem}
    message = str(error["msg"])
    is_acronym = message[:2].isupper()
    return {
        "name": ".".join(name) or place,
        "place": place,
        "value": _shortened(str(error["input"])),
        "problem": message if is_acronym else message[:1].lower() + message[1:],
    }


def _sentence(wrong: Mapping[str, str]) -> str:
    given = f"={wrong['value']}" if wrong["value"] or wrong["name"] != wrong["place"] else ""
    return f"{wrong['name']}{given}: {wrong['problem']}"


def _shortened(text: str) -> str:
    plain = text.encode(errors="replace").decode()
    return plain if len(plain) <= SHOWN else f"{plain[:SHOWN]}…"
