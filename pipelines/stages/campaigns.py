"""Campaigns for users of Airflow: orders, approvals, proofs, and the targets of a proposed campaign."""

import json
from argparse import Namespace
from datetime import UTC, datetime

from manifold.contracts.errors import Permanent
from manifold.settings import Settings
from pipelines.arguments import add_run_id, option, require_run_id
from pipelines.stages import stage

MISSING, APPROVE = "missing", "approve"  # ids of the tasks that may follow `campaign_asks`


@stage(
    require_run_id,
    option("--campaign", "the campaign's id", required=True),
    option("--do", "pause, resume, cancel, pass, retry, approve, refuse", required=True),
    option("--by", "the user who gives it", default=""),
    option("--why", "why; it is kept on record", default=""),
    option("--wave", "number of a wave, from 0: of approve, refuse, pass", default=""),
    option("--plan-sha256", "the plan that was read: of approve; empty: the one on record", default=""),
    option("--accept", "the rules that tripped, with commas between: of resume", default=""),
    option("--ended", "how targets had ended, with commas between: of retry; default: failed", default=""),
)
def campaign_order(settings: Settings, options: Namespace) -> str:
    """Give an order to a campaign, such as pause or approve, for a user of Airflow.

    Return the API's response.
    """
    from pipelines.campaigns.orders import ORDERS, give_order

    do = options.do.lower()
    if do not in ORDERS:
        raise Permanent(f"--do {options.do!r} must be one of {', '.join(ORDERS)}")
    if options.wave and not options.wave.isdecimal():
        raise Permanent(f"--wave {options.wave!r} must be the number of a wave, a whole number from 0")
    fields: dict[str, object] = {"why": options.why}
    if do in ("approve", "refuse", "pass"):
        fields["wave"] = int(options.wave) if options.wave else None
    if do == "approve":
        fields["plan_sha256"] = options.plan_sha256
    if do == "resume":
        fields["accept"] = _parts(options.accept)
    if do == "retry":
        fields["ended"] = _parts(options.ended) or ["failed"]
    return json.dumps(give_order(settings, do, options.campaign.strip(), options.by, options.run_id, **fields))


def _parts(text: str) -> list[str]:
    """Split a comma-separated list; empty parts are left out."""
    return [part.strip() for part in text.split(",") if part.strip()]


@stage(
    add_run_id,
    option("--campaign", "the campaign's id; empty: look through all", default=""),
    option("--wave", "the gate of the wave at this place, from 0; empty: the plan", default=""),
)
def campaign_asks(settings: Settings, options: Namespace) -> str:
    """Say which approvals campaigns wait for; or, of one of them, what a person reads before giving it.

    Return the `runs` that ask for approvals, or with `--campaign` a question; and as `next` the task that follows.
    """
    from pipelines.campaigns.approvals import missing_approvals, question

    if options.campaign:
        wave = int(options.wave) if options.wave else None
        return json.dumps({"next": [APPROVE], "runs": [], **question(settings, options.campaign, wave)})
    runs = missing_approvals(settings) if settings.with_campaigns else []  # without campaigns, nothing waits for an approval
    return json.dumps({"next": [MISSING] if runs else [], "runs": runs})


@stage(
    add_run_id,
    option("--campaign", "the campaign's id; empty: all of the last days", default=""),
    option("--days", "campaigns with an order so many days ago or later; 0: all", type=float, default=8),
)
def campaign_reports(settings: Settings, options: Namespace) -> str:
    """Prove campaigns from the lake: a page, a list of targets, and an error if the record contradicts a plan.

    Return the number of campaigns, and the address of the page that lists their proofs.
    """
    from pipelines.campaigns.proofs import publish_proofs
    from pipelines.catalog import await_catalog

    catalog = await_catalog(settings)
    campaign = options.campaign.strip()
    return json.dumps(publish_proofs(settings, catalog, datetime.now(UTC), campaign=campaign, days=options.days))


@stage(
    require_run_id,
    option("--campaign", "the campaign's id", required=True),
    option("--by", "the user in whose name the list is recorded", default=""),
)
def campaign_targets(settings: Settings, options: Namespace) -> str:
    """Resolve the list of a proposed campaign, judge it, and record it.

    Return how many vehicles were recorded, and the address of the report.
    """
    from pipelines.campaigns.targets import record_targets
    from pipelines.catalog import await_catalog
    from pipelines.spark.session import GREAT_EXPECTATIONS, session

    catalog = await_catalog(settings)
    campaign = options.campaign.strip()
    with session(settings, "campaign_targets", meanwhile=GREAT_EXPECTATIONS) as spark:
        return json.dumps(record_targets(settings, spark, catalog, campaign, by=options.by, run_id=options.run_id))
