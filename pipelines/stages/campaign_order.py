"""Give an order to a campaign, such as pause or approve, for a user of Airflow."""

import argparse
import json

from manifold.settings import Settings
from pipelines.arguments import add_run_id


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the order, and who gives it."""
    add_run_id(parser, required=True)
    parser.add_argument("--campaign", required=True, help="the campaign's id")
    parser.add_argument("--do", required=True, help="pause, resume, cancel, pass, retry, approve, refuse")
    parser.add_argument("--by", default="", help="the user who gives it")
    parser.add_argument("--why", default="", help="why; it is kept on record")
    parser.add_argument("--wave", default="", help="number of a wave, from 0: of approve, refuse, pass")
    parser.add_argument("--plan-sha256", default="", help="the plan that was read: of approve; empty: the one on record")
    parser.add_argument("--accept", default="", help="the rules that tripped, with commas between: of resume")
    parser.add_argument("--ended", default="", help="how targets had ended, with commas between: of retry; default: failed")


def run(settings: Settings, options: argparse.Namespace) -> str:
    """Give the order, and return the API's response as JSON."""
    from manifold.contracts.errors import Permanent
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
