"""Alert rules and dashboards use existing metrics, pass their rule tests, and match their sources."""

import importlib.util
import subprocess

import pytest
from ruamel.yaml import YAML

from tests.infra.seen import FOREIGN, GRAFANA, PROMETHEUS, dashboards, expressions, listed, names, of_signals, promtool, rules
from tests.support.servers import ROOT

needs_promtool = pytest.mark.skipif(promtool() is None, reason="promtool is not installed: apt-get install prometheus")


@needs_promtool
def test_prometheus_accepts_its_configuration() -> None:
    checked = subprocess.run(["promtool", "check", "config", PROMETHEUS / "prometheus.yml"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@needs_promtool
def test_each_rule_fires_when_it_should_and_not_before() -> None:
    played = subprocess.run(["promtool", "test", "rules", PROMETHEUS / "rules.test.yml"], capture_output=True, text=True)
    assert played.returncode == 0, played.stdout + played.stderr


def test_every_rule_has_a_rule_test() -> None:
    played = YAML(typ="safe").load(PROMETHEUS / "rules.test.yml")
    asked = [each for test in played["tests"] for each in test["alert_rule_test"]]
    fires = {each["alertname"] for each in asked if each.get("exp_alerts")}
    silent = {each["alertname"] for each in asked if not each.get("exp_alerts")}
    all_of_them = {rule["alert"] for rule in rules()}
    assert all_of_them - fires == set()
    assert all_of_them - silent == set()


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_states_its_severity_and_remedy(rule: dict[str, dict[str, str]]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"].keys() == {"summary", "remedy"}


def test_the_page_of_alerts_lists_every_rule_with_its_severity() -> None:
    rows = [line for line in (ROOT / "docs" / "operate" / "alerts.md").read_text().splitlines() if line.startswith("| ")]
    asked = [(f"`{rule['alert']}`", f"({rule['labels']['severity']})") for rule in rules()]
    assert [name for name, severity in asked if not any(name in row and severity in row for row in rows)] == []


def test_rules_and_dashboards_use_existing_metrics() -> None:
    known = FOREIGN | listed().keys() | of_signals().keys()
    asked = {where: names(expression) for where, expression in expressions().items()}
    assert {where: unknown for where, found in asked.items() if (unknown := found - known - {"up"})} == {}


def test_every_metric_is_on_a_dashboard_or_in_a_rule() -> None:
    asked = set().union(*map(names, expressions().values()))
    assert listed().keys() - asked == {
        # only relevant to developers of these parts
        "manifold_dispatcher_attempts",
        "manifold_dispatcher_reconcile_failures_total",
        "manifold_recorder_dropped_total",
        "manifold_tap_connections_total",
        "manifold_tap_events_total",
        "manifold_tap_events_waiting",
        "manifold_tap_forgotten_early_total",
        "manifold_tap_publications",
        "manifold_tap_publisher_reconnects_total",
    }


def test_every_metric_of_signals_is_on_a_dashboard_or_in_a_rule() -> None:
    asked = set().union(*map(names, expressions().values()))
    assert of_signals().keys() - asked == {
        "signals_foreign_total",  # details are in the log
        "signals_group_messages",
        "signals_replies_total",
    }  # only relevant to its developers


def test_dashboards_match_their_sources() -> None:
    spec = importlib.util.spec_from_file_location("build", GRAFANA / "build.py")
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    made = {name: build.dashboard(name, board) for name, board in build.boards().items()}
    assert dashboards() == made, "run: python infra/grafana/build.py"


def test_no_two_panels_overlap() -> None:
    for board in dashboards().values():
        taken: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            at = panel["gridPos"]
            cells = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
            assert not cells & taken, panel["title"]
            taken |= cells
