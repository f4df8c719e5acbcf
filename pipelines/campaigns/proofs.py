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
MAX_NAMED_FINDINGS = 10  # in the error message
# The templates of the pages, and `style.html`, which they share with the audit's reports.
LOADER = ChoiceLoader([PackageLoader("pipelines.campaigns", "pages"), PackageLoader("expectations", "pages")])
PAGES = Environment(loader=LOADER, autoescape=True, trim_blocks=True, lstrip_blocks=True)

log = structlog.get_logger(__name__)


def _local_instant(unix_ms: int | None) -> str:
    """An instant in the local time zone; empty for None."""
    if unix_ms is None:
        return ""
    return f"{datetime.fromtimestamp(unix_ms / 1000).astimezone():%Y-%m-%d %H:%M:%S %Z}"


PAGES.filters["url"] = lambda text: quote(str(text), safe="")
PAGES.filters["instant"] = _local_instant


def publish_proofs(settings: Settings, catalog: Catalog, now: datetime, *, campaign: str = "", days: float = 0) -> dict[str, Any]:
    """Prove one campaign or, if `campaign` is empty, every campaign that had an order in the last `days` (0: at any time).

    Return the number of campaigns, and the address of the page that lists the proofs.

    Raises:
        Permanent: the lake has no record of the campaign.
        Retryable: a proof failed. A retry may succeed, because the tables of a run become visible one after the other.
    """
    names = [campaign] if campaign else _recent_campaigns(catalog, now, days)
    reports = open_reports(settings)
    contradictions: list[str] = []
    for name in names:
        recorded = read_campaign(catalog, name)
        findings = _publish(reports, name, recorded, now)
        contradictions += [f"{name}: {_finding_text(finding)}" for finding in findings]
        log.info("proof of campaign published", campaign=name, facts=len(recorded.facts), contradictions=len(findings))
    index_page = PAGES.get_template("proofs.html").render(proofs=list(_published_proofs(reports)))
    _write(reports, f"{FOLDER}/{INDEX}", index_page)
    address = reports.address(f"{FOLDER}/{INDEX}")
    if contradictions:
        unnamed = len(contradictions) - MAX_NAMED_FINDINGS
        more = f", and {unnamed} more" if unnamed > 0 else ""
        raise Retryable(f"not proved: {'; '.join(contradictions[:MAX_NAMED_FINDINGS])}{more}; see {address}")
    return {"campaigns": len(names), "report": address}


def _recent_campaigns(catalog: Catalog, now: datetime, days: float) -> list[str]:
    """The campaigns that had an order in the last `days` (0: at any time), in alphabetical order."""
    is_recent: BooleanExpression = where(GreaterThanOrEqual, "at", now - timedelta(days=days)) if days else AlwaysTrue()
    table = catalog.load_table(CAMPAIGN_EVENTS.identifier)
    return sorted(set(table.scan(is_recent, ("campaign",)).to_arrow()["campaign"].to_pylist()))


def _publish(reports: Files, name: str, recorded: LakeRecord, now: datetime) -> list[dict[str, Any]]:
    """Prove one campaign, and write its page, its proof and its targets. Return the findings: what contradicts its plan."""
    proof = report(recorded.facts, recorded.sent)
    folder = f"{FOLDER}/{_folder(name)}"
    proof_with_names = proof | {"campaign": name, "folder": _folder(name), "as_of": now.isoformat(timespec="seconds")}
    reports.write(f"{folder}/{TARGETS}", _targets_csv(fold(Campaign(), recorded.facts)))
    reports.write(f"{folder}/{PROOF}", encode(proof_with_names))
    _write(reports, f"{folder}/{INDEX}", PAGES.get_template("proof.html").render(proof=proof_with_names))
    findings: list[dict[str, Any]] = proof["falsifications"]
    return findings


def _finding_text(finding: dict[str, Any]) -> str:
    parts = (finding["kind"], finding["vin"], finding["detail"])
    return " ".join(part for part in parts if part)


def _folder(name: str) -> str:
    """The folder of a campaign's pages.

    A name that begins with a dot gets a prefix: `..` would lead out of the folder, and hidden folders are not served.
    """
    return f"_{name}" if name.startswith(".") else name


def _targets_csv(campaign: Campaign) -> bytes:
    """The targets and their states as CSV, by wave, and within a wave as they were drawn; without a plan, only a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    if campaign.decided.plan is not None:
        max_rows = max(1, len(campaign.decided.targets))  # the limit must not be 0
        rows, _ = views.targets(campaign, limit=max_rows)
        writer.writerows(rows)
    return text.getvalue().encode()


def _published_proofs(reports: Files) -> Iterator[dict[str, Any]]:
    """Yield the proofs of all campaigns in the store, ordered by their paths."""
    for path in sorted(reports.below(FOLDER)):
        if not path.endswith(f"/{PROOF}"):
            continue
        content = reports.read(path)
        if content is not None:  # otherwise the file was removed since it was listed
            yield json.loads(content)


def _write(reports: Files, path: str, text: str) -> None:
    reports.write(path, text.encode())
