"""`/dead-letters`: refused signals, as listed by the AMQP door. `/signal-keys`: the keys that seal signals."""

from typing import Annotated, Any

import httpx
from fastapi import APIRouter, Path, Query
from pyiceberg.catalog import Catalog

from manifold.api._document import FAILURES
from manifold.api._parameters import Limit
from manifold.api._problems import Missing
from manifold.api._sources import Sources
from manifold.api.models.dead_letters import DeadLetter, DeadLetters, SignalKey, SignalKeys, WholeDeadLetter
from manifold.contracts.errors import Retryable
from manifold.contracts.signals.codes import Code
from manifold.lake.day_keys import DayKeys
from manifold.runtime.tls import verified

PAGE = 100
WAIT_S = 20.0  # longer than the door's own timeout
Place = Annotated[int, Path(ge=1, le=999_999, examples=[1], description="its place in the queue, the oldest is 1")]
OnlyCode = Annotated[Code | None, Query(description="only those that were refused with this code")]


def dead_letter_routes(sources: Sources) -> APIRouter:
    """Return the routes of dead letters and signal keys."""
    router = APIRouter(tags=["signals"])
    settings = sources.settings

    async def door(path: str, **query: Any) -> Any:
        if not settings.with_signals:
            raise Missing("there is no AMQP door here: MANIFOLD_WITH_SIGNALS is false")
        try:
            trust = verified(settings, settings.signals)
            async with httpx.AsyncClient(headers=settings.bearer, timeout=WAIT_S, trust_env=False, verify=trust) as client:
                answer = await client.get(f"{settings.signals}/dead-letters{path}", params=query)
                body = answer.json()
        except (httpx.HTTPError, OSError, ValueError) as exc:
            raise Retryable(f"the AMQP door cannot be asked ({type(exc).__name__}); see `manifold status`") from exc
        if answer.status_code == httpx.codes.NOT_FOUND and "reason" in body:
            raise Missing(body["reason"])
        if answer.status_code != httpx.codes.OK:
            raise Retryable(f"the AMQP door has no answer: {body.get('reason', answer.status_code)}")
        return body

    @router.get("/dead-letters", responses=FAILURES[404])
    async def ls(limit: Limit = PAGE, code: OnlyCode = None) -> DeadLetters:
        """Messages that the AMQP door has refused, the oldest first, and what it would make of each if it came now.

        Nothing is taken or sent: `would_be` is what `manifold signals dlq replay --dry-run` says.
        """
        body = await door("", count=limit, **({"code": code.value} if code else {}))
        return DeadLetters(dead_letters=[DeadLetter(**one) for one in body["dead_letters"]], whole=body["whole"])

    @router.get("/dead-letters/{place}", responses=FAILURES[404])
    async def show(place: Place) -> WholeDeadLetter:
        """One dead letter, with the body as it came."""
        return WholeDeadLetter(**await door(f"/{place}"))

    @router.get("/signal-keys")
    async def keys() -> SignalKeys:
        """List day keys: the ring key that wraps each, and whether the ring has it. Contains no key material."""

        def read(_: Catalog) -> SignalKeys:
            found = DayKeys.of(settings)
            ring = found.ring.ids
            days = [
                SignalKey(key_id=k.key_id, day=k.day, ring_id=k.ring_id, in_ring=k.ring_id in ring, wrapped_at=k.wrapped_at)
                for k in found.wrapped()
            ]
            return SignalKeys(ring=list(ring), keys=days)

        return await sources.lake.ask(read)

    return router
