"""`/campaigns…` and `/vins/{vin}/campaigns`: the recorded campaigns, their plans, targets, orders and reports."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query
from fastapi.responses import Response

from manifold.api._document import FAILURES
from manifold.api._parameters import After, CampaignId, Limit, Vin
from manifold.api._problems import Missing, problem
from manifold.api._sources import Sources
from manifold.api.models import campaign_plans as plans
from manifold.api.models import campaigns as models
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
MAX_CONCURRENT_JOBS = 2  # forecasts and reports computed at once
MISSING = FAILURES[404]
T = TypeVar("T")
AfterVin = Annotated[
    str, Query(pattern=f"^({VIN_PATTERN.pattern})?$", max_length=MAX_VIN, description="only targets behind this one; empty: all")
]
OfState = Annotated[Status | None, Query(alias="state", description="only targets with this state")]
OfWave = Annotated[int | None, Query(alias="wave", ge=0, le=10_000, description="only targets of the wave at this place")]
OfStage = Annotated[Stage | None, Query(alias="state", description="only campaigns with this state")]


def campaign_routes(sources: Sources) -> APIRouter:
    """Return the routes that read campaigns."""
    router = APIRouter(tags=["campaigns"])
    job_limit = asyncio.Semaphore(MAX_CONCURRENT_JOBS)

    async def proposed_campaign(name: str) -> Campaign:
        campaign = await sources.campaigns.one(name)
        if campaign is None or campaign.decided.plan is None:
            raise Missing(f"no campaign {name} is on record; /api/v1/campaigns lists them")
        return campaign

    async def run_job(function: Callable[..., T], *arguments: Any) -> T:
        """Run a long computation in a thread, or refuse it if as many as allowed are running."""
        if job_limit.locked():
            raise Retryable(f"{MAX_CONCURRENT_JOBS} records of campaigns are being read; ask again")
        async with job_limit:
            return await asyncio.to_thread(function, *arguments)

    @router.get("/campaigns")
    async def list_campaigns(state: OfStage = None) -> models.CampaignList:
        """The campaigns on record and their states, oldest proposal first."""
        now_ms = wall_clock_ms()
        campaigns = await sources.campaigns.all()
        summaries: list[dict[str, Any]] = []
        for name, campaign in views.in_order(campaigns):
            if state is None or campaign.decided.stage == state:
                summaries.append(views.summary(name, campaign, now_ms))
        return models.CampaignList.model_validate({"campaigns": summaries})

    @router.get("/campaigns/{campaign}", responses=MISSING)
    async def show(campaign: CampaignId, response: Response) -> models.CampaignState:
        """The state of a campaign and its reason, its counts by wave and state, and its rate. The `ETag` is its version."""
        recorded = await proposed_campaign(campaign)
        response.headers["ETag"] = f'"{recorded.decided.version}"'
        return models.CampaignState.model_validate(views.summary(campaign, recorded, wall_clock_ms()))

    @router.get("/campaigns/{campaign}/plan", responses=MISSING)
    async def show_plan(campaign: CampaignId) -> plans.PlanState:
        """The plan in force, the present counts of its rules, warnings, and missing approvals."""
        recorded = await proposed_campaign(campaign)
        view = await asyncio.to_thread(details, campaign, recorded, wall_clock_ms())
        return plans.PlanState.model_validate(view)

    @router.get("/campaigns/{campaign}/targets", response_model=models.TargetPage, responses=MISSING)
    async def targets(
        campaign: CampaignId, state: OfState = None, wave: OfWave = None, after: AfterVin = "", limit: Limit = PAGE
    ) -> Any:
        """The targets of a campaign and their states, in the order of waves and draw, a page at a time."""
        recorded = await proposed_campaign(campaign)
        try:
            page, next_after = await asyncio.to_thread(views.targets, recorded, state=state, wave=wave, after=after, limit=limit)
        except LookupError:
            return problem(422, f"after={after}: is not a target of {campaign}; send the after of a page")
        return models.TargetPage.model_validate({"campaign": campaign, "targets": page, "after": next_after})

    @router.get("/campaigns/{campaign}/events", responses=MISSING)
    async def events(campaign: CampaignId, after: After = 0, limit: Limit = PAGE) -> models.EventPage:
        """The recorded orders to a campaign, by people and by the campaigner, oldest first, a page at a time."""
        recorded = await proposed_campaign(campaign)
        page, next_after = views.events(recorded, after=after, limit=limit)
        return models.EventPage.model_validate({"campaign": campaign, "events": page, "after": next_after})

    @router.get("/campaigns/{campaign}/forecast", responses=MISSING)
    async def show_forecast(campaign: CampaignId) -> plans.Forecast:
        """When shares of the targets would be delivered if the campaign started now and every vehicle were connected."""
        recorded = await proposed_campaign(campaign)
        policy = policy_of(sources.settings)
        absences_ms = [0]  # every vehicle is connected
        result = await run_job(forecast, views.with_targets(recorded), absences_ms, policy, wall_clock_ms())
        return plans.Forecast.model_validate({"campaign": campaign, **views.forecast_view(result)})

    @router.get("/campaigns/{campaign}/report", responses=MISSING)
    async def show_report(campaign: CampaignId) -> plans.Report:
        """The proof of a campaign from its whole record: its numbers, orders, and the findings of a verification."""
        await proposed_campaign(campaign)

        def read_and_report() -> dict[str, Any]:
            return report(read_facts(sources.settings, campaign))

        return plans.Report(campaign=campaign, report=await run_job(read_and_report))

    @router.get("/vins/{vin}/campaigns")
    async def of_vehicle(vin: Vin) -> models.VehicleCampaigns:
        """The campaigns of which a vehicle is a target, and its state in each."""
        campaigns = await sources.campaigns.all()
        view = await asyncio.to_thread(views.of_vehicle, campaigns, vin)
        return models.VehicleCampaigns.model_validate({"vin": vin, "campaigns": view})

    return router
