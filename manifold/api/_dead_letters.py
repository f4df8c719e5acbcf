"""`/dead-letters`: refused signals, as listed by the AMQP door. `/signal-keys`: the keys that seal signals."""

from typing import Annotated, Any, TypeVar

import httpx
from fastapi import APIRouter, Path, Query
from pydantic import BaseModel
from pyiceberg.catalog import Catalog

from manifold.api._document import FAILURES
from manifold.api._parameters import Limit
from manifold.api._problems import Missing
from manifold.api._sources import Sources
from manifold.api.models.dead_letters import DeadLetters, SignalKey, SignalKeys, WholeDeadLetter
from manifold.contracts.errors import Retryable
from manifold.contracts.signals.codes import Code
from manifold.lake.day_keys import DayKeys
from manifold.runtime.tls import verified

PAGE = 100
REQUEST_TIMEOUT_S = 20.0  # longer than the door's own timeout
Place = Annotated[int, Path(ge=1, le=999_999, examples=[1], description="its place in the queue, the oldest is 1")]
M = TypeVar("M", bound=BaseModel)
OnlyCode = Annotated[Code | None, Query(description="only those that were refused with this code")]


def dead_letter_routes(sources: Sources) -> APIRouter:
    """Return the routes of dead letters and signal keys."""
    router = APIRouter(tags=["signals"])
    settings = sources.settings

    async def request_from_door(path: str, model: type[M], **query: Any) -> M:
        """Return the AMQP door's response to `GET /dead-letters{path}`."""
        if not settings.with_signals:
            raise Missing("there is no AMQP door here: MANIFOLD_WITH_SIGNALS is false")
        try:
            async with httpx.AsyncClient(
                headers=settings.bearer,
                timeout=REQUEST_TIMEOUT_S,
                trust_env=False,  # no proxy of the environment
                verify=verified(settings, settings.signals),
            ) as client:
                response = await client.get(f"{settings.signals}/dead-letters{path}", params=query)
            if response.status_code == httpx.codes.OK:
                return model.model_validate_json(response.content)
            body = response.json()
        except (httpx.HTTPError, OSError, ValueError) as exc:  # ValueError: another program may use the port
            raise Retryable(f"the AMQP door cannot be asked ({type(exc).__name__}); see `manifold status`") from exc
        reason = body.get("reason") if isinstance(body, dict) else None
        if response.status_code == httpx.codes.NOT_FOUND and reason:
            raise Missing(reason)
        raise Retryable(f"the AMQP door has no answer: {reason or response.status_code}")

    @router.get("/dead-letters", responses=FAILURES[404])
    async def ls(limit: Limit = PAGE, code: OnlyCode = None) -> DeadLetters:
        """Messages that the AMQP door has refused, oldest first, and how it would treat each one now.

        Nothing is consumed or sent: `would_be` is the result of `manifold signals dlq replay --dry-run`.
        """
        code_filter = {} if code is None else {"code": code.value}
        return await request_from_door("", DeadLetters, count=limit, **code_filter)

    @router.get("/dead-letters/{place}", responses=FAILURES[404])
    async def show(place: Place) -> WholeDeadLetter:
        """One dead letter, with its body as received."""
        return await request_from_door(f"/{place}", WholeDeadLetter)

    @router.get("/signal-keys")
    async def keys() -> SignalKeys:
        """The day keys, which ring key wraps each of them, and whether the ring has that key. No key material is returned."""

        def read(_: Catalog) -> SignalKeys:
            day_keys = DayKeys.of(settings)
            ring_ids = day_keys.ring.ids
            wrapped_keys = [
                SignalKey(
                    key_id=wrapped.key_id,
                    day=wrapped.day,
                    ring_id=wrapped.ring_id,
                    in_ring=wrapped.ring_id in ring_ids,
                    wrapped_at=wrapped.wrapped_at,
                )
                for wrapped in day_keys.wrapped()
            ]
            return SignalKeys(ring=list(ring_ids), keys=wrapped_keys)

        return await sources.lake.ask(read)

    return router
