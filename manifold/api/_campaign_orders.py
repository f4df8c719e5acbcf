"""`POST /campaigns…`: orders to campaigns. Each order records the name of the caller's token as its author."""

import asyncio
import secrets
from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query
from fastapi.responses import Response
from pyiceberg.catalog import Catalog

from manifold.api._callers import Caller, Right, needs
from manifold.api._document import FAILURES
from manifold.api._parameters import CampaignId, only_json
from manifold.api._problems import problem
from manifold.api._sources import Sources
from manifold.api.models import campaign_orders as m
from manifold.campaigns import proposals
from manifold.campaigns.intake import BRAKES, Declined, Effect, Problem, Taken, take, take_proposal
from manifold.contracts import campaigns as r
from manifold.contracts import keys
from manifold.contracts.errors import Retryable
from manifold.contracts.messages import Receipt, Refused
from manifold.contracts.seq import wall_clock_ms
from manifold.history import DataHistory
from manifold.history.merge import History
from manifold.messaging.publisher import Publisher

MAX_CONCURRENT_ORDERS = 8  # each order opens a connection to the broker. Brakes are not limited
STATUS_OF = {Problem.MISSING: 404, Problem.STALE: 412, Problem.UNFIT: 409, Problem.REFUSED: 422}
ORDER_FAILURES = FAILURES[404] | FAILURES[409] | FAILURES[412] | FAILURES[413] | FAILURES[415]
BRAKE_NOT_SET: dict[int | str, dict[str, Any]] = {
    202: {"model": m.Ordered, "description": "on disk, and the brake is not on yet"}
}
IfMatch = Annotated[
    str,
    Header(pattern='^("[0-9]{1,9}")?$', description="the version of the campaign, as its `ETag` says: refused if it is another"),
]
DryRun = Annotated[bool, Query(description="true: examine the proposal, and record nothing")]
Proposer = Annotated[Caller, Depends(needs(Right.PROPOSE))]
Approver = Annotated[Caller, Depends(needs(Right.APPROVE))]
Braker = Annotated[Caller, Depends(needs(Right.BRAKE))]


def campaign_order_routes(sources: Sources) -> APIRouter:
    """Return the routes that order campaigns."""
    router = APIRouter(tags=["campaigns"], dependencies=[Depends(only_json)])
    order_limit = asyncio.Semaphore(MAX_CONCURRENT_ORDERS)

    async def publish(orders: Iterable[r.Command]) -> list[Receipt]:
        async with Publisher(sources.settings, sources.settings.mqtt_username_api) as publisher:
            return await publisher.orders(orders)

    async def take_limited_order(
        order_type: type[r.Order], campaign: str, caller: Caller, body: m.Order, if_match: str
    ) -> Response:
        if order_limit.locked():
            raise Retryable(f"{MAX_CONCURRENT_ORDERS} orders are under way; ask again")
        async with order_limit:
            return await take_order(order_type, campaign, caller, body, if_match)

    async def take_order(order_type: type[r.Order], campaign: str, caller: Caller, body: m.Order, if_match: str) -> Response:
        fields = body.model_dump()
        fields["campaign"] = campaign
        fields["by"] = caller.name
        fields["token"] = body.token or secrets.token_hex(16)
        fields["if_version"] = int(if_match.strip('"')) if if_match else None
        try:
            command = r.build_order(order_type, fields)
        except ValueError as exc:
            return problem(422, str(exc))
        try:
            return _response(command, await take(command, sources.campaigns.one, publish))
        except Retryable as exc:
            if order_type not in BRAKES:
                raise
            raise Retryable(f"{exc}; the brake is not known to be on: order it again") from None

    @router.post("/campaigns", response_model=m.Ordered | m.DryRun, responses=ORDER_FAILURES)
    async def propose(body: m.PlanOrder, caller: Proposer, dry_run: DryRun = False) -> Any:
        """Propose a campaign, and respond when the proposal is on disk. With `dry_run` nothing is recorded."""
        if order_limit.locked():
            raise Retryable(f"{MAX_CONCURRENT_ORDERS} orders are under way; ask again")
        policy = proposals.policy_of(sources.settings)
        now_ms = wall_clock_ms()
        async with order_limit:
            campaign = await asyncio.to_thread(proposals.examined, body.plan, None, policy, now_ms)
            if isinstance(campaign, Refused):
                return problem(422, campaign.reason)
            plan = campaign.decided.plan
            assert plan is not None
            data_bytes = await _data_bytes(sources, plan.data_id)
            async with Publisher(sources.settings, sources.settings.mqtt_username_api) as publisher:
                largest_packet = publisher.largest_packet
            refusal = proposals.data_refusal(plan, data_bytes, largest_packet, sources.settings.topic_prefix)
            if refusal is not None:
                return problem(422, refusal)
            if dry_run:
                result = proposals.dry_run(campaign, data_bytes, now_ms)
                return problem(422, result.reason) if isinstance(result, Refused) else m.DryRun.model_validate(result)
            fields = {
                "campaign": plan.campaign,
                "by": caller.name,
                "why": body.why,
                "plan": body.plan,
                "token": body.token or secrets.token_hex(16),
            }
            proposal = r.build_order(r.Propose, fields)
            assert isinstance(proposal, r.Propose)
            return _response(proposal, await take_proposal(proposal, (), sources.campaigns.one, publish))

    @router.post("/campaigns/{campaign}/pause", response_model=m.Ordered, responses=ORDER_FAILURES | BRAKE_NOT_SET)
    async def pause(campaign: CampaignId, body: m.Order, caller: Braker, if_match: IfMatch = "") -> Any:
        """Pause a campaign: nothing is sent for it until it is resumed."""
        return await take_order(r.Pause, campaign, caller, body, if_match)

    @router.post("/campaigns/{campaign}/cancel", response_model=m.Ordered, responses=ORDER_FAILURES | BRAKE_NOT_SET)
    async def cancel(campaign: CampaignId, body: m.Order, caller: Braker, if_match: IfMatch = "") -> Any:
        """Cancel a campaign for good: nothing more is sent for it."""
        return await take_order(r.Cancel, campaign, caller, body, if_match)

    @router.post("/campaigns/{campaign}/approve", response_model=m.Ordered, responses=ORDER_FAILURES)
    async def approve(campaign: CampaignId, body: m.Approve, caller: Approver, if_match: IfMatch = "") -> Any:
        """Approve a plan, an amendment, or the gate of a wave."""
        return await take_limited_order(r.Approve, campaign, caller, body, if_match)

    @router.post("/campaigns/{campaign}/refuse", response_model=m.Ordered, responses=ORDER_FAILURES)
    async def refuse(campaign: CampaignId, body: m.Order, caller: Approver, if_match: IfMatch = "") -> Any:
        """Refuse a proposal for good."""
        return await take_limited_order(r.Refuse, campaign, caller, body, if_match)

    @router.post("/campaigns/{campaign}/resume", response_model=m.Ordered, responses=ORDER_FAILURES)
    async def resume(campaign: CampaignId, body: m.Resume, caller: Approver, if_match: IfMatch = "") -> Any:
        """Resume a paused campaign. `accept` names the rules that tripped; they start to count from zero."""
        return await take_limited_order(r.Resume, campaign, caller, body, if_match)

    @router.post("/campaigns/{campaign}/pass", response_model=m.Ordered, responses=ORDER_FAILURES)
    async def pass_gate(campaign: CampaignId, body: m.Pass, caller: Approver, if_match: IfMatch = "") -> Any:
        """Open the next wave although the conditions of the gate are not met."""
        return await take_limited_order(r.Pass, campaign, caller, body, if_match)

    @router.post("/campaigns/{campaign}/retry", response_model=m.Ordered, responses=ORDER_FAILURES)
    async def retry(campaign: CampaignId, body: m.Retry, caller: Approver, if_match: IfMatch = "") -> Any:
        """Retry the targets whose last attempt has ended in one of these ways."""
        return await take_limited_order(r.Retry, campaign, caller, body, if_match)

    @router.post("/campaigns/{campaign}/amend", response_model=m.Ordered, responses=ORDER_FAILURES)
    async def amend(campaign: CampaignId, body: m.PlanOrder, caller: Proposer, if_match: IfMatch = "") -> Any:
        """Replace the plan. If the new plan allows more than the old one, people have to approve it first."""
        return await take_limited_order(r.Amend, campaign, caller, body, if_match)

    return router


def _response(command: r.Command, result: Taken | Declined) -> Response:
    """Build the response to an order: 202 for a brake that is not set yet, otherwise 200, or a problem if it was declined."""
    if isinstance(result, Declined):
        return problem(STATUS_OF[result.problem], result.reason)
    body = m.Ordered(
        campaign=command.campaign,
        do=str(command.__struct_config__.tag),
        by=command.by,
        seq=result.seq,
        token=command.token,
        effect=result.effect,
        reason=result.reason,
    )
    status = 202 if result.effect is Effect.NOT_IN_FORCE else 200
    return Response(body.model_dump_json(), status, media_type="application/json")


async def _data_bytes(sources: Sources, data_id: str) -> int | None:
    """Return the size of the data in bytes, or None if nothing was published under its id."""
    key = keys.data(data_id)
    if await sources.redis.exists(key):
        return int(await sources.redis.strlen(key))

    def read(catalog: Catalog) -> DataHistory | None:
        return History(sources.settings, sources.blocking(), catalog).data(data_id)

    data = await sources.lake.ask(read)
    return None if data is None else len(data.payload)
