"""The expressions of rules and dashboards, and the existing metrics."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.support.servers import ROOT

PROMETHEUS, GRAFANA = ROOT / "infra" / "prometheus", ROOT / "infra" / "grafana"
ROW = re.compile(r"^\| `(manifold_\w+)` \| (\w+) \|", re.MULTILINE)
OURS = re.compile(r"\bmanifold_\w+")
METRIC = re.compile(r"\b[a-z][a-z0-9]*_[a-z0-9_]+\b(?!\s*\()")

# External metrics: EMQX's /prometheus/stats (5.8), RabbitMQ's /metrics/detailed (3.10), cert-manager, and the client library.
FOREIGN = {
    "certmanager_certificate_expiration_timestamp_seconds",
    "emqx_cert_expiry_at",
    "emqx_live_connections_count",
    "emqx_messages_received",
    "emqx_messages_sent",
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "rabbitmq_detailed_queue_messages",
    "rabbitmq_detailed_queue_messages_ready",
    "rabbitmq_detailed_queue_messages_unacked",
}


def rules() -> list[dict[str, Any]]:
    """Every alert rule."""
    found = YAML(typ="safe").load(PROMETHEUS / "rules" / "manifold.yml")
    return [rule for group in found["groups"] for rule in group["rules"]]


def dashboards() -> dict[str, dict[str, Any]]:
    """Every dashboard as Grafana reads it, by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((GRAFANA / "dashboards").glob("*.json"))}


def expressions() -> dict[str, str]:
    """Every expression of rules and dashboards, by its location."""
    asked = {f"rule {rule['alert']}": str(rule["expr"]) for rule in rules()}
    for name, board in dashboards().items():
        for panel in board["panels"]:
            asked |= {f"{name}, {panel['title']} {target['refId']}": target["expr"] for target in panel["targets"]}
    return asked


def listed() -> dict[str, str]:
    """The type of each metric of a service, as docs/reference/metrics.md lists them."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    return {name: kind for name, kind in ROW.findall(page) if not name.startswith("manifold_stream_")}


def of_signals() -> dict[str, str]:
    """The type of each metric of the signals service, from its source."""
    found = re.findall(r'(Counter|Gauge|Histogram)\("(signals_\w+)"', (ROOT / "manifold" / "signals" / "_metrics.py").read_text())
    return {name + "_total" * (kind == "Counter"): kind.lower() for kind, name in found}


def names(expression: str) -> set[str]:
    """The metrics in an expression, a histogram by its base name; label matchers and durations are removed."""
    plain = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(by|on|without|ignoring)\s*\([^)]*\)", "", expression)
    return {
        re.sub(r"_(bucket|sum|count)$", "", name) if name.startswith(("manifold_", "signals_")) else name
        for name in METRIC.findall(plain)
    }


def promtool() -> Path | None:
    """Prometheus' promtool, if it is installed."""
    found = shutil.which("promtool")
    return Path(found) if found else None
