"""`POST /campaigns…`: orders to campaigns. The name of the caller's token is recorded as the person who orders."""

import asyncio
import secrets
from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query
from fastapi.responses import Response

from manifold.api._callers import Caller, Right, needs
from manifold.api._document import FAILURES
from manifold.api._parameters import CampaignId, only_json
from manifold.api._problems import problem
from manifold.api._sources import Sources
from manifold.api.models import campaign_orders as m
from manifold.campaigns import proposals
from manifold.campaigns.fold import Campaign
from manifold.campaigns.intake import BRAKES, Declined, Effect, Problem, Taken, take, take_proposal
from manifold.contracts import campaigns as r
from manifold.contracts import keys
from manifold.contracts.errors import Retryable
from manifold.contracts.messages import Receipt, Refused
from manifold.contracts.seq import wall_clock_ms
from manifold.history.merge import History
from manifold.messaging.publisher import Publisher

ORDERS = 8  # concurrent ones: each opens a connection to the broker. Brakes do not wait for them
STATUS_OF = {Problem.MISSING: 404, Problem.STALE: 412, Problem.UNFIT: 409, Problem.REFUSED: 422}
FAILS = FAILURES[404] | FAILURES[409] | FAILURES[412] | FAILURES[413] | FAILURES[415]
NOT_ON: dict[int | str, dict[str, Any]] = {202: {"model": m.Ordered, "description": "on disk, and the brake is not on yet"}}
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
    under_way = asyncio.Semaphore(ORDERS)

    async def publish(orders: Iterable[r.Command]) -> list[Receipt]:
        async with Publisher(sources.settings, sources.settings.mqtt_username_api) as publisher:
            return await publisher.orders(orders)

    async def order(make: type[r.Order], campaign: str, caller: Caller, body: m.Order, if_match: str) -> Any:
        if under_way.locked():
            raise Retryable(f"{ORDERS} orders are under way; ask again")
        async with under_way:
            return await ordered(make, campaign, caller, body, if_match)

    async def ordered(make: type[r.Order], campaign: str, caller: Caller, body: m.Order, if_match: str) -> Any:
        fields = body.model_dump() | {"campaign": campaign, "by": caller.name, "token": body.token or secrets.token_hex(16)}
        fields |= {"if_version": int(if_match.strip('"')) if if_match else None}
        try:
            command = r.build_order(make, fields)
        except ValueError as exc:
            return problem(422, str(exc))
        try:
            return _answer(command, await take(command, sources.campaigns.one, publish))
        except Retryable as exc:
            if make not in BRAKES:
                raise
            raise Retryable(f"{exc}; the brake is not known to be on: order it again") from None

    @router.post("/campaigns", response_model=m.Ordered | m.DryRun, responses=FAILS)
    async def propose(body: m.PlanOrder, caller: Proposer, dry_run: DryRun = False) -> Any:
        """Propose a campaign; the answer comes when the proposal is on disk. With `dry_run` nothing is recorded."""
        if under_way.locked():
            raise Retryable(f"{ORDERS} orders are under way; ask again")
        policy = proposals.policy_of(sources.settings)
        now_ms = wall_clock_ms()
        async with under_way:
            campaign = await asyncio.to_thread(proposals.examined, body.plan, None, policy, now_ms)
            if isinstance(campaign, Refused):
                return problem(422, campaign.reason)
            assert campaign.decided.plan is not None
            size = await _data_bytes(sources, campaign)
            async with Publisher(sources.settings, sources.settings.mqtt_username_api) as publisher:
                largest = publisher.largest_packet
            refused = proposals.data_refusal(campaign.decided.plan, size, largest, sources.settings.topic_prefix)
            if refused is not None:
                return problem(422, refused)
            if dry_run:
                result = proposals.dry_run(campaign, size, now_ms)
                return problem(422, result.reason) if isinstance(result, Refused) else m.DryRun.model_validate(result)
            fields = {"campaign": campaign.decided.plan.campaign, "by": caller.name, "why": body.why, "plan": body.plan}
            proposal = r.build_order(r.Propose, fields | {"token": body.token or secrets.token_hex(16)})
            assert isinstance(proposal, r.Propose)
            return _answer(proposal, await take_proposal(proposal, (), sources.campaigns.one, publish))

    @router.post("/campaigns/{campaign}/pause", response_model=m.Ordered, responses=FAILS | NOT_ON)
    async def pause(campaign: CampaignId, body: m.Order, caller: Braker, if_match: IfMatch = "") -> Any:
        """Put the brake on: nothing of the campaign is sent until it is resumed."""
        return await ordered(r.Pause, campaign, caller, body, if_match)

    @router.post("/campaigns/{campaign}/cancel", response_model=m.Ordered, responses=FAILS | NOT_ON)
    async def cancel(campaign: CampaignId, body: m.Order, caller: Braker, if_match: IfMatch = "") -> Any:
        """End a campaign for good: nothing of it is sent any more."""
        return await ordered(r.Cancel, campaign, caller, body, if_match)

    @router.post("/campaigns/{campaign}/approve", response_model=m.Ordered, responses=FAILS)
    async def approve(campaign: CampaignId, body: m.Approve, caller: Approver, if_match: IfMatch = "") -> Any:
        """Approve a plan, an amendment, or the gate of a wave."""
        return await order(r.Approve, campaign, caller, body, if_match)

    @router.post("/campaigns/{campaign}/refuse", response_model=m.Ordered, responses=FAILS)
    async def refuse(campaign: CampaignId, body: m.Order, caller: Approver, if_match: IfMatch = "") -> Any:
        """Refuse a proposal for good."""
        return await order(r.Refuse, campaign, caller, body, if_match)

    @router.post("/campaigns/{campaign}/resume", response_model=m.Ordered, responses=FAILS)
    async def resume(campaign: CampaignId, body: m.Resume, caller: Approver, if_match: IfMatch = "") -> Any:
        """Resume after a pause; `accept` names the rules that tripped, which count from zero again."""
        return await order(r.Resume, campaign, caller, body, if_match)

    @router.post("/campaigns/{campaign}/pass", response_model=m.Ordered, responses=FAILS)
    async def pass_gate(campaign: CampaignId, body: m.Pass, caller: Approver, if_match: IfMatch = "") -> Any:
        """Open the next wave although the gate of the open one does not hold."""
        return await order(r.Pass, campaign, caller, body, if_match)

    @router.post("/campaigns/{campaign}/retry", response_model=m.Ordered, responses=FAILS)
    async def retry(campaign: CampaignId, body: m.Retry, caller: Approver, if_match: IfMatch = "") -> Any:
        """Let targets whose last attempt has ended in one of these ways wait again."""
        return await order(r.Retry, campaign, caller, body, if_match)

    @router.post("/campaigns/{campaign}/amend", response_model=m.Ordered, responses=FAILS)
    async def amend(campaign: CampaignId, body: m.PlanOrder, caller: Proposer, if_match: IfMatch = "") -> Any:
        """Replace the plan; where the new one allows more, people have to approve it first."""
        return await order(r.Amend, campaign, caller, body, if_match)

    return router


def _answer(command: r.Command, found: Taken | Declined) -> Response:
    if isinstance(found, Declined):
        return problem(STATUS_OF[found.problem], found.reason)
    do = str(command.__struct_config__.tag)
    view = m.Ordered(
        campaign=command.campaign,
        do=do,
        by=command.by,
        seq=found.seq,
        token=command.token,
        effect=found.effect,
        reason=found.reason,
    )
    return Response(view.model_dump_json(), 202 if found.effect is Effect.NOT_IN_FORCE else 200, media_type="application/json")


async def _data_bytes(sources: Sources, campaign: Campaign) -> int | None:
    """The size of the campaign's data; None if nothing was published under its id."""
    assert campaign.decided.plan is not None
    data_id = campaign.decided.plan.data_id
    key = keys.data(data_id)
    if await sources.redis.exists(key):
        return int(await sources.redis.strlen(key))
    found = await sources.lake.ask(lambda catalog: History(sources.settings, sources.blocking(), catalog).data(data_id))
    return None if found is None else len(found.payload)
