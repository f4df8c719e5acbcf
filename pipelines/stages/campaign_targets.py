"""Resolve the list of a proposed campaign, judge it, and record it."""

import argparse
import json

from manifold.settings import Settings
from pipelines.arguments import add_run_id


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the campaign, and the user in whose name the list is recorded."""
    add_run_id(parser, required=True)
    parser.add_argument("--campaign", required=True, help="the campaign's id")
    parser.add_argument("--by", default="", help="the user in whose name the list is recorded")


def run(settings: Settings, options: argparse.Namespace) -> str:
    """Return as JSON how many vehicles were recorded, and the address of the report."""
    from pipelines.campaigns.targets import record_targets
    from pipelines.catalog import await_catalog
    from pipelines.spark.session import GREAT_EXPECTATIONS, session

    catalog = await_catalog(settings)
    campaign = options.campaign.strip()
    with session(settings, "campaign_targets", meanwhile=GREAT_EXPECTATIONS) as spark:
        return json.dumps(record_targets(settings, spark, catalog, campaign, by=options.by, run_id=options.run_id))
