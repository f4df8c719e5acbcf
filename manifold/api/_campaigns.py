"""`/campaigns…` and `/vins/{vin}/campaigns`: what is on record of campaigns."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response

from manifold.api._document import FAILURES
from manifold.api._parameters import After, CampaignId, Limit, Vin
from manifold.api._problems import Missing, problem
from manifold.api._sources import Sources
from manifold.api.models import campaign_plans as plans
from manifold.api.models import campaigns as m
from manifold.campaigns import views
from manifold.campaigns.decided import Stage
from manifold.campaigns.details import details
from manifold.campaigns.fold import Campaign
from manifold.campaigns.forecast import forecast
from manifold.campaigns.proof import report
from manifold.campaigns.proposals import policy_of
from manifold.campaigns.record import read_facts
from manifold.campaigns.standing import Status
from manifold.contracts.errors import Retryable
from manifold.contracts.names import MAX_VIN, VIN_PATTERN
from manifold.contracts.seq import wall_clock_ms

PAGE = 100
READS = 2  # whole records at once
MISSING = FAILURES[404]
AfterVin = Annotated[
    str, Query(pattern=f"^({VIN_PATTERN.pattern})?$", max_length=MAX_VIN, description="only targets behind this one; empty: all")
]
OfState = Annotated[Status | None, Query(alias="state", description="only targets with this state")]
OfWave = Annotated[int | None, Query(alias="wave", ge=0, le=10_000, description="only targets of the wave at this place")]
OfStage = Annotated[Stage | None, Query(alias="state", description="only campaigns with this state")]


def campaign_routes(sources: Sources) -> APIRouter:
    """Return the routes that read campaigns."""
    router = APIRouter(tags=["campaigns"])
    reading = asyncio.Semaphore(READS)

    async def found(name: str) -> Campaign:
        campaign = await sources.campaigns.one(name)
        if campaign is None or campaign.decided.plan is None:
            raise Missing(f"no campaign {name} is on record; /api/v1/campaigns lists them")
        return campaign

    async def in_thread(function: Any, *arguments: Any) -> Any:
        if reading.locked():
            raise Retryable(f"{READS} records of campaigns are being read; ask again")
        async with reading:
            return await asyncio.to_thread(function, *arguments)

    @router.get("/campaigns")
    async def list_campaigns(state: OfStage = None) -> m.CampaignList:
        """The campaigns on record, oldest proposal first: where they are, and why."""
        now_ms, all_of_them = wall_clock_ms(), await sources.campaigns.all()
        some = [
            views.summary(name, each, now_ms) for name, each in views.in_order(all_of_them) if state in (None, each.decided.stage)
        ]
        return m.CampaignList.model_validate({"campaigns": some})

    @router.get("/campaigns/{campaign}", responses=MISSING)
    async def show(campaign: CampaignId, response: Response) -> m.CampaignState:
        """Where a campaign is, and why; its counts by wave and state; its rate. The `ETag` is its version."""
        known = await found(campaign)
        response.headers["ETag"] = f'"{known.decided.version}"'
        return m.CampaignState.model_validate(views.summary(campaign, known, wall_clock_ms()))

    @router.get("/campaigns/{campaign}/plan", responses=MISSING)
    async def show_plan(campaign: CampaignId) -> plans.PlanState:
        """The plan in force, what its rules count now, warnings, and the approvals that are missing."""
        known = await found(campaign)
        return plans.PlanState.model_validate(await asyncio.to_thread(details, campaign, known, wall_clock_ms()))

    @router.get("/campaigns/{campaign}/targets", response_model=m.TargetPage, responses=MISSING)
    async def targets(
        campaign: CampaignId, state: OfState = None, wave: OfWave = None, after: AfterVin = "", limit: Limit = PAGE
    ) -> Any:
        """The targets of a campaign and their states, in the order of waves and draw, a page at a time."""
        known = await found(campaign)
        try:
            page, more = await asyncio.to_thread(views.targets, known, state=state, wave=wave, after=after, limit=limit)
        except LookupError:
            return problem(422, f"after={after}: is not a target of {campaign}; send the after of a page")
        return m.TargetPage.model_validate({"campaign": campaign, "targets": page, "after": more})

    @router.get("/campaigns/{campaign}/events", responses=MISSING)
    async def events(campaign: CampaignId, after: After = 0, limit: Limit = PAGE) -> m.EventPage:
        """The recorded orders of a campaign, oldest first, a page at a time: of people and of the campaigner."""
        page, more = views.events(await found(campaign), after=after, limit=limit)
        return m.EventPage.model_validate({"campaign": campaign, "events": page, "after": more})

    @router.get("/campaigns/{campaign}/forecast", responses=MISSING)
    async def show_forecast(campaign: CampaignId) -> plans.Forecast:
        """When shares of the targets would be delivered if the campaign started now and every vehicle were connected."""
        known = await found(campaign)
        policy = policy_of(sources.settings)
        view = views.forecast_view(await in_thread(forecast, views.with_targets(known), [0], policy, wall_clock_ms()))
        return plans.Forecast.model_validate({"campaign": campaign, **view})

    @router.get("/campaigns/{campaign}/report", responses=MISSING)
    async def show_report(campaign: CampaignId) -> plans.Report:
        """The proof of a campaign from its whole record: numbers, orders, and what a verification found."""
        await found(campaign)
        return plans.Report(campaign=campaign, report=await in_thread(lambda: report(read_facts(sources.settings, campaign))))

    @router.get("/vins/{vin}/campaigns")
    async def of_vehicle(vin: Vin) -> m.VehicleCampaigns:
        """The campaigns that a vehicle is a target of, and where it is in each."""
        known = await sources.campaigns.all()
        return m.VehicleCampaigns.model_validate({"vin": vin, "campaigns": await asyncio.to_thread(views.of_vehicle, known, vin)})

    return router
