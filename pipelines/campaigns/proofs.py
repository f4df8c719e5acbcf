"""Proves campaigns from the tables of the lake, and publishes each proof as a page, as JSON and as a list of targets."""

import csv
import io
import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import structlog
from jinja2 import ChoiceLoader, Environment, PackageLoader
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue, BooleanExpression, GreaterThanOrEqual

from manifold.campaigns import views
from manifold.campaigns.fold import Campaign, fold
from manifold.campaigns.lake import LakeRecord, read_campaign
from manifold.campaigns.proof import encode, report
from manifold.contracts.errors import Retryable
from manifold.contracts.tables import CAMPAIGN_EVENTS
from manifold.lake.catalog import where
from manifold.lake.files import Files
from manifold.lake.reports import open_reports
from manifold.settings import Settings

FOLDER, INDEX, PROOF, TARGETS = "campaigns", "index.html", "proof.json", "targets.csv"
COLUMNS = ("vin", "wave_name", "zone", "state", "since")
MAX_NAMED = 10  # findings in the error message
LOADER = ChoiceLoader([PackageLoader("pipelines.campaigns", "pages"), PackageLoader("expectations", "pages")])  # style.html
PAGES = Environment(loader=LOADER, autoescape=True, trim_blocks=True, lstrip_blocks=True)
PAGES.filters["url"] = lambda text: quote(str(text), safe="")
PAGES.filters["instant"] = lambda ms: (
    "" if ms is None else f"{datetime.fromtimestamp(ms / 1000).astimezone():%Y-%m-%d %H:%M:%S %Z}"
)

log = structlog.get_logger(__name__)


def publish_proofs(settings: Settings, catalog: Catalog, now: datetime, *, campaign: str = "", days: float = 0) -> dict[str, Any]:
    """Prove a campaign, or all that had an order in the last `days` (0: ever); return what was found of each.

    Raises:
        Permanent: the lake has no record of the campaign.
        Retryable: a proof failed. Try again: the tables of a run become visible one after the other.
    """
    names = [campaign] if campaign else _names(catalog, now, days)
    reports, found = open_reports(settings), dict[str, list[dict[str, Any]]]()
    for name in names:
        known = read_campaign(catalog, name)
        found[name] = _publish(reports, name, known, now)
        log.info("campaign verified", campaign=name, facts=len(known.facts), findings=len(found[name]))
    _write(reports, f"{FOLDER}/{INDEX}", PAGES.get_template("proofs.html").render(proofs=list(_kept(reports))))
    wrong = [f"{name}: {_sentence(each)}" for name, listed in found.items() for each in listed]
    if wrong:
        more = f", and {len(wrong) - MAX_NAMED} more" if len(wrong) > MAX_NAMED else ""
        raise Retryable(f"not proved: {'; '.join(wrong[:MAX_NAMED])}{more}; see {reports.address(f'{FOLDER}/{INDEX}')}")
    return {"campaigns": len(names), "report": reports.address(f"{FOLDER}/{INDEX}")}


def _names(catalog: Catalog, now: datetime, days: float) -> list[str]:
    since: BooleanExpression = where(GreaterThanOrEqual, "at", now - timedelta(days=days)) if days else AlwaysTrue()
    table = catalog.load_table(CAMPAIGN_EVENTS.identifier)
    return sorted(set(table.scan(since, ("campaign",)).to_arrow()["campaign"].to_pylist()))


def _publish(reports: Files, name: str, known: LakeRecord, now: datetime) -> list[dict[str, Any]]:
    """Write the page of one campaign; return what its verification found."""
    proof = report(known.facts, known.sent)
    folder = f"{FOLDER}/{_folder(name)}"
    stamped = proof | {"campaign": name, "folder": _folder(name), "as_of": now.isoformat(timespec="seconds")}
    reports.write(f"{folder}/{TARGETS}", _csv(fold(Campaign(), known.facts)))
    reports.write(f"{folder}/{PROOF}", encode(stamped))
    _write(reports, f"{folder}/{INDEX}", PAGES.get_template("proof.html").render(proof=stamped))
    findings: list[dict[str, Any]] = proof["falsifications"]
    return findings


def _sentence(finding: dict[str, Any]) -> str:
    return " ".join(filter(None, (finding["kind"], finding["vin"], finding["detail"])))


def _folder(name: str) -> str:
    """The folder of a campaign's pages. Names that begin with a dot could lead elsewhere, and are served to nobody."""
    return f"_{name}" if name.startswith(".") else name


def _csv(campaign: Campaign) -> bytes:
    """The targets with their states, in the order of waves and draw."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    if campaign.decided.plan is not None:
        rows, _ = views.targets(campaign, limit=len(campaign.decided.targets) or 1)
        writer.writerows(rows)
    return text.getvalue().encode()


def _kept(reports: Files) -> Iterator[dict[str, Any]]:
    for path in sorted(reports.below(FOLDER)):
        if path.endswith(f"/{PROOF}") and (content := reports.read(path)) is not None:
            yield json.loads(content)


def _write(reports: Files, path: str, text: str) -> None:
    reports.write(path, text.encode())
