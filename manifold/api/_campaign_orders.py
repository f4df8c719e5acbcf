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
from manifold.api._parameters import CampaignId, require_json
from manifold.api._problems import problem
from manifold.api._sources import Sources
from manifold.api.models import campaign_orders as models
from manifold.campaigns import proposals
from manifold.campaigns.intake import BRAKES, Declined, Effect, Problem, Taken, take, take_proposal
from manifold.contracts import campaigns, keys
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
    202: {"model": models.Ordered, "description": "on disk, and the brake is not on yet"}
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
    router = APIRouter(tags=["campaigns"], dependencies=[Depends(require_json)])
    order_limit = asyncio.Semaphore(MAX_CONCURRENT_ORDERS)

    async def publish(orders: Iterable[campaigns.Command]) -> list[Receipt]:
        async with Publisher(sources.settings, sources.settings.mqtt_username_api) as publisher:
            return await publisher.orders(orders)

    async def broker_packet_limit() -> int:
        """Return the maximum packet size in bytes, which the broker announces when a client connects."""
        async with Publisher(sources.settings, sources.settings.mqtt_username_api) as publisher:
            return publisher.largest_packet

    async def respond_to_limited_order(
        order_type: type[campaigns.Order], campaign: str, caller: Caller, body: models.Order, if_match: str
    ) -> Response:
        """Publish an order as `respond_to_order` does, or raise Retryable if as many orders as allowed are under way."""
        if order_limit.locked():
            raise Retryable(f"{MAX_CONCURRENT_ORDERS} orders are under way; ask again")
        async with order_limit:
            return await respond_to_order(order_type, campaign, caller, body, if_match)

    async def respond_to_order(
        order_type: type[campaigns.Order], campaign: str, caller: Caller, body: models.Order, if_match: str
    ) -> Response:
        """Publish an order if it fits the campaign, and build the response, which says whether it is on disk or why not."""
        fields = body.model_dump()
        fields["campaign"] = campaign
        fields["by"] = caller.name
        fields["token"] = body.token or secrets.token_hex(16)  # of this order: with the same token, it counts once
        fields["if_version"] = int(if_match.strip('"')) if if_match else None
        try:
            command = campaigns.build_order(order_type, fields)
        except ValueError as exc:
            return problem(422, str(exc))
        try:
            return _response(command, await take(command, sources.campaigns.one, publish))
        except Retryable as exc:
            if order_type not in BRAKES:
                raise
            # Whoever brakes must know that the campaign may still be running.
            raise Retryable(f"{exc}; the brake is not known to be on: order it again") from None

    @router.post("/campaigns", response_model=models.Ordered | models.DryRun, responses=ORDER_FAILURES)
    async def propose(body: models.PlanOrder, caller: Proposer, dry_run: DryRun = False) -> Any:
        """Propose a campaign, and respond when the proposal is on disk. With `dry_run` nothing is recorded."""
        if order_limit.locked():
            raise Retryable(f"{MAX_CONCURRENT_ORDERS} orders are under way; ask again")
        policy = proposals.policy_of(sources.settings)
        now_ms = wall_clock_ms()
        async with order_limit:
            targets_of_file = None  # a request has no file of targets, so no list of targets is published below either
            campaign = await asyncio.to_thread(proposals.examined, body.plan, targets_of_file, policy, now_ms)
            if isinstance(campaign, Refused):
                return problem(422, campaign.reason)
            plan = campaign.decided.plan
            assert plan is not None  # the campaign is made from this plan
            data_bytes = await _data_bytes(sources, plan.data_id)
            packet_limit = await broker_packet_limit()
            refusal = proposals.data_refusal(plan, data_bytes, packet_limit, sources.settings.topic_prefix)
            if refusal is not None:
                return problem(422, refusal)
            if dry_run:
                result = proposals.dry_run(campaign, data_bytes, now_ms)
                if isinstance(result, Refused):
                    return problem(422, result.reason)
                return models.DryRun.model_validate(result)
            fields = {
                "campaign": plan.campaign,
                "by": caller.name,
                "why": body.why,
                "plan": body.plan,
                "token": body.token or secrets.token_hex(16),
            }
            proposal = campaigns.build_order(campaigns.Propose, fields)
            assert isinstance(proposal, campaigns.Propose)
            return _response(proposal, await take_proposal(proposal, (), sources.campaigns.one, publish))

    @router.post("/campaigns/{campaign}/pause", response_model=models.Ordered, responses=ORDER_FAILURES | BRAKE_NOT_SET)
    async def pause(campaign: CampaignId, body: models.Order, caller: Braker, if_match: IfMatch = "") -> Any:
        """Pause a campaign: nothing is sent for it until it is resumed."""
        return await respond_to_order(campaigns.Pause, campaign, caller, body, if_match)

    @router.post("/campaigns/{campaign}/cancel", response_model=models.Ordered, responses=ORDER_FAILURES | BRAKE_NOT_SET)
    async def cancel(campaign: CampaignId, body: models.Order, caller: Braker, if_match: IfMatch = "") -> Any:
        """Cancel a campaign for good: nothing more is sent for it."""
        return await respond_to_order(campaigns.Cancel, campaign, caller, body, if_match)

    @router.post("/campaigns/{campaign}/approve", response_model=models.Ordered, responses=ORDER_FAILURES)
    async def approve(campaign: CampaignId, body: models.Approve, caller: Approver, if_match: IfMatch = "") -> Any:
        """Approve a plan, an amendment, or the gate of a wave."""
        return await respond_to_limited_order(campaigns.Approve, campaign, caller, body, if_match)

    @router.post("/campaigns/{campaign}/refuse", response_model=models.Ordered, responses=ORDER_FAILURES)
    async def refuse(campaign: CampaignId, body: models.Order, caller: Approver, if_match: IfMatch = "") -> Any:
        """Refuse a proposal for good."""
        return await respond_to_limited_order(campaigns.Refuse, campaign, caller, body, if_match)

    @router.post("/campaigns/{campaign}/resume", response_model=models.Ordered, responses=ORDER_FAILURES)
    async def resume(campaign: CampaignId, body: models.Resume, caller: Approver, if_match: IfMatch = "") -> Any:
        """Resume a paused campaign. `accept` names the rules that tripped; they start to count from zero."""
        return await respond_to_limited_order(campaigns.Resume, campaign, caller, body, if_match)

    @router.post("/campaigns/{campaign}/pass", response_model=models.Ordered, responses=ORDER_FAILURES)
    async def pass_gate(campaign: CampaignId, body: models.Pass, caller: Approver, if_match: IfMatch = "") -> Any:
        """Open the next wave although the conditions of the gate are not met."""
        return await respond_to_limited_order(campaigns.Pass, campaign, caller, body, if_match)

    @router.post("/campaigns/{campaign}/retry", response_model=models.Ordered, responses=ORDER_FAILURES)
    async def retry(campaign: CampaignId, body: models.Retry, caller: Approver, if_match: IfMatch = "") -> Any:
        """Retry the targets whose last attempt has ended in one of these ways."""
        return await respond_to_limited_order(campaigns.Retry, campaign, caller, body, if_match)

    @router.post("/campaigns/{campaign}/amend", response_model=models.Ordered, responses=ORDER_FAILURES)
    async def amend(campaign: CampaignId, body: models.PlanOrder, caller: Proposer, if_match: IfMatch = "") -> Any:
        """Replace the plan. If the new plan allows more than the old one, people have to approve it first."""
        return await respond_to_limited_order(campaigns.Amend, campaign, caller, body, if_match)

    return router


def _response(command: campaigns.Command, result: Taken | Declined) -> Response:
    """Build the response to an order: 202 for a brake that is not set yet, otherwise 200, or a problem if it was declined."""
    if isinstance(result, Declined):
        return problem(STATUS_OF[result.problem], result.reason)
    body = models.Ordered(
        campaign=command.campaign,
        do=str(command.__struct_config__.tag),  # the name of the order, such as `pause`
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
        return History(sources.settings, sources.blocking_redis(), catalog).data(data_id)

    data = await sources.lake.ask(read)
    return None if data is None else len(data.payload)
