"""Path and query parameters with their formats and bounds; unknown parameters are refused."""

from typing import Annotated, Any

from fastapi import HTTPException, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator

from manifold.contracts.ecq import refused_client
from manifold.contracts.names import ID_PATTERN, MAX_ID, MAX_VIN, VIN_PATTERN
from manifold.contracts.seq import MAX_SEQ

MAX_ENTRIES = 1000  # maximum page size
VIN, REQUEST_ID, DATA_ID = "1M8GDM9AXKP042788", "task_map_7", "bac78ecd804510bdac02e0db350f95adabd7eb4a"


def _require_client_with_queue(client_id: str) -> str:
    """Return the client id, or raise ValueError if such a client cannot have a compacted queue."""
    refusal = refused_client(client_id)
    if refusal is not None:
        raise ValueError(refusal.reason)
    return client_id


_VIN: dict[str, Any] = {"pattern": f"^{VIN_PATTERN.pattern}$", "min_length": 1, "max_length": MAX_VIN, "examples": [VIN]}
_ID: dict[str, Any] = {"pattern": f"^{ID_PATTERN.pattern}$", "min_length": 1, "max_length": MAX_ID}
_REQUEST_ID: dict[str, Any] = {**_ID, "examples": [REQUEST_ID], "description": "of the triggers"}

Vin = Annotated[str, Path(**_VIN, description="the vehicle: 1 to 64 printable ASCII characters without space, `+`, `#`, `/`")]
ClientId = Annotated[
    str,
    Path(**_VIN, description="the client whose queue it is: as a VIN, but not `w`, `r`, and not a service's"),
    AfterValidator(_require_client_with_queue),
]
VinAsked = Annotated[str, Query(**_VIN, description="the vehicle")]
RequestId = Annotated[str, Path(**_REQUEST_ID)]
RequestIdAsked = Annotated[str, Query(**_REQUEST_ID)]
CampaignId = Annotated[str, Path(**_ID, examples=["eu-map-47"], description="of the campaign")]
DataId = Annotated[str, Path(**_ID, examples=[DATA_ID], description="of the data")]
Limit = Annotated[int, Query(ge=1, le=MAX_ENTRIES, description="entries of one page")]
Before = Annotated[int, Query(ge=0, le=MAX_SEQ, description="only what has a smaller `seq` than this")]
After = Annotated[int, Query(ge=0, le=MAX_SEQ, description="only what has a greater `seq` than this")]


async def require_json(request: Request) -> None:
    """Refuse bodies that are not declared as JSON.

    This prevents cross-site request forgery: a browser sends a form to another site without a preflight request, but not JSON.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "send the body as Content-Type: application/json")


async def refuse_unknown_parameters(request: Request) -> None:
    """Refuse unknown query parameters, because a misspelt parameter would be ignored silently."""
    known = {parameter.alias for parameter in request.scope["route"].dependant.query_params}
    unknown = [name for name in request.query_params if name not in known]
    if not unknown:
        return
    alternatives = f"; there are {', '.join(sorted(known))}" if known else ": there are none"
    message = f"is no parameter here{alternatives}"
    errors: list[dict[str, Any]] = []
    for name in unknown:
        value = request.query_params[name]
        errors.append({"type": "extra_forbidden", "loc": ("query", name), "msg": message, "input": value})
    raise RequestValidationError(errors)
