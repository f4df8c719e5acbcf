"""Prove campaigns from the lake: a page, a list of targets, and an error if the record contradicts a plan."""

import argparse
import json
from datetime import UTC, datetime

from manifold.settings import Settings
from pipelines.arguments import add_run_id


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: which campaigns."""
    add_run_id(parser)
    parser.add_argument("--campaign", default="", help="the campaign's id; empty: all of the last days")
    parser.add_argument("--days", type=float, default=8, help="campaigns with an order so many days ago or later; 0: all")


def run(settings: Settings, options: argparse.Namespace) -> str:
    """Return as JSON the number of campaigns, and the address of the page that lists their proofs."""
    from pipelines.campaigns.proofs import publish_proofs
    from pipelines.catalog import await_catalog

    catalog = await_catalog(settings)
    campaign = options.campaign.strip()
    return json.dumps(publish_proofs(settings, catalog, datetime.now(UTC), campaign=campaign, days=options.days))
