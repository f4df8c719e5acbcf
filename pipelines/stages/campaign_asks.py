"""Say which approvals campaigns wait for; or, of one of them, what a person reads before giving it."""

import argparse
import json

from manifold.settings import Settings
from pipelines.arguments import add_run_id

MISSING, APPROVE = "missing", "approve"  # ids of the tasks that may follow


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: one campaign, or none for all."""
    add_run_id(parser)
    parser.add_argument("--campaign", default="", help="the campaign's id; empty: look through all")
    parser.add_argument("--wave", default="", help="the gate of the wave at this place, from 0; empty: the plan")


def run(settings: Settings, options: argparse.Namespace) -> str:
    """Return JSON: the `runs` that ask for approvals, or with `--campaign` a question; and as `next` the task that follows."""
    from pipelines.campaigns.approvals import missing_approvals, question

    if options.campaign:
        wave = int(options.wave) if options.wave else None
        return json.dumps({"next": [APPROVE], "runs": [], **question(settings, options.campaign, wave)})
    runs = missing_approvals(settings) if settings.with_campaigns else []
    return json.dumps({"next": [MISSING] if runs else [], "runs": runs})
