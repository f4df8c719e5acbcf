"""`infra/compose`: referenced files exist, settings are known, containers are restricted, secrets match."""

import json
import re
import shutil
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from manifold.api._callers import Caller, Callers, Right
from manifold.contracts.signals import rights
from manifold.settings import Settings, load_settings
from tests.infra.seen import promtool
from tests.support.servers import ROOT

HERE = ROOT / "infra" / "compose"
COMPOSE: dict[str, Any] = YAML(typ="safe").load(HERE / "compose.yml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OTHERS = {"MANIFOLD_FILE"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("infra") / "compose"
    folder.mkdir()
    shutil.copy(HERE / "secrets.sh", folder)
    for server in ("rabbitmq", "redis"):
        shutil.copytree(HERE.parent / server, folder.parent / server)
    ran = subprocess.run([folder / "secrets.sh"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return folder / "secrets"


def named(service: dict[str, Any], kind: str) -> list[str]:
    return [each if isinstance(each, str) else each["source"] for each in service.get(kind, [])]


@pytest.mark.parametrize("name", SERVICES)
def test_everything_a_service_names_exists(name: str) -> None:
    service = SERVICES[name]
    assert set(named(service, "secrets")) <= COMPOSE["secrets"].keys()
    assert set(named(service, "configs")) <= COMPOSE["configs"].keys()
    volumes = {each.partition(":")[0] for each in service.get("volumes", [])}
    assert {each for each in volumes if not each.startswith(".")} <= COMPOSE["volumes"].keys()
    assert all((HERE / each).exists() for each in volumes if each.startswith("."))
    for other, waits in service.get("depends_on", {}).items():
        assert waits["condition"] == "service_completed_successfully" or "healthcheck" in SERVICES[other], other


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_is_pinned_limited_and_health_checked(name: str) -> None:
    service = SERVICES[name]
    assert re.search(r":[\w.-]*\d[\w.-]*$|MANIFOLD_IMAGE", service["image"])
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), "every port must be limited to this machine"
    assert name == "airflow-migrate" or "healthcheck" in service
    if name not in {"emqx", "rabbitmq"}:
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])


def test_every_file_exists_and_every_definition_is_used() -> None:
    assert [each["file"] for each in COMPOSE["configs"].values() if not (HERE / each["file"]).exists()] == []
    for kind in ("configs", "secrets"):
        assert COMPOSE[kind].keys() == {name for service in SERVICES.values() for name in named(service, kind)}


def test_the_example_variables_match_the_file() -> None:
    asked = set(re.findall(r"\$\{([A-Z_]+)", (HERE / "compose.yml").read_text()))
    assert asked == set(re.findall(r"^([A-Z_]+)=", (HERE / ".env.example").read_text(), re.MULTILINE))


def test_every_secret_is_generated_in_a_folder_of_its_owner(made: Path) -> None:
    named = {Path(each["file"]).name for each in COMPOSE["secrets"].values()} | {"emqx.env"}  # EMQX gets it as variables
    assert named == {path.name for path in made.iterdir()}
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    subprocess.run([made.parent / "secrets.sh"], check=True, capture_output=True, timeout=60)
    assert before == {path.name: path.read_bytes() for path in made.iterdir()}


@pytest.mark.parametrize("service", ["recorder", "dispatcher", "campaigner", "signals", "api", "airflow-scheduler"])
def test_environment_variables_are_known_settings(made: Path, service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = SERVICES[service]
    variables = {name: value for name, value in found["environment"].items() if name.startswith("MANIFOLD_")}
    plain = {name.removeprefix("MANIFOLD_").lower(): str(value) for name, value in variables.items() if name not in OTHERS}
    assert plain.keys() <= Settings.model_fields.keys()
    plain["mqtt_vehicle_url"] = "mqtt://127.0.0.1:1883"
    (file,) = (each["source"] for each in found["secrets"] if isinstance(each, dict))
    monkeypatch.setenv("MANIFOLD_FILE", str(made / file))
    settings = load_settings(**plain)
    assert settings.http_token.get_secret_value() == (made / "http-token").read_text()
    user, _, password = settings.redis.partition("@")[0].removeprefix("redis://").partition(":")
    assert user == {"airflow-scheduler": "jobs"}.get(service, service)
    assert f"user {user} on >{password} " in (made / "redis-users.acl").read_text()
    assert (made / "postgres-catalog-password").read_text() in settings.catalog


def test_rabbitmq_users_have_least_privilege(made: Path) -> None:
    definitions = json.loads((made / "rabbitmq-definitions.json").read_text())
    passwords = {user["name"]: user["password"] for user in definitions["users"]}
    assert {name: definitions[name] for name in rights.permissions()} == rights.permissions()
    assert passwords.keys() == rights.RIGHTS.keys()
    assert len(set(passwords.values())) == len(passwords)
    assert [user["tags"] for user in definitions["users"]] == [[]] * len(passwords)
    told = tomllib.loads((made / "signals.toml").read_text())
    assert told["signals_amqp_url"] == f"amqp://door:{passwords['door']}@rabbitmq:5672/"
    assert told["signals_operator_url"] == f"amqp://operator:{passwords['operator']}@rabbitmq:5672/"
    others = [path.read_text() for path in made.glob("*.toml") if path.name != "signals.toml"]
    assert [text for text in others if any(password in text for password in passwords.values())] == []


def test_airflow_has_a_named_token_that_orders_for_its_users(made: Path) -> None:
    told = {name: tomllib.loads((made / f"{name}.toml").read_text()) for name in ("api", "jobs")}
    assert told["api"]["api_tokens_file"] == "/run/secrets/api-tokens"
    assert "api-tokens" in named(SERVICES["api"], "secrets")
    assert [path.name for path in made.iterdir() if told["jobs"]["api_token"] in path.read_text()] == ["jobs.toml"]
    callers = Callers.of(Settings(api_tokens_file=str(made / "api-tokens")))
    rights = frozenset({Right.READ, Right.APPROVE, Right.BRAKE, Right.DELEGATE})
    assert callers.identify(f"Bearer {told['jobs']['api_token']}") == Caller("airflow", rights)


@pytest.mark.skipif(promtool() is None, reason="promtool is not installed: apt-get install prometheus")
def test_prometheus_accepts_its_configuration_and_scrapes_every_service(made: Path, tmp_path: Path) -> None:
    shutil.copytree(HERE / "etc", tmp_path / "etc")
    (tmp_path / "etc" / "rules").mkdir()
    shutil.copy(ROOT / "infra" / "prometheus" / "rules" / "manifold.yml", tmp_path / "etc" / "rules")
    (tmp_path / "etc" / "secrets").mkdir()
    shutil.copy(made / "http-token", tmp_path / "etc" / "secrets" / "http_token")
    checked = subprocess.run(["promtool", "check", "config", tmp_path / "etc" / "prometheus.yml"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    for path in (HERE / "etc" / "targets").glob("*.yml"):
        for group in YAML(typ="safe").load(path):
            assert {target.partition(":")[0] for target in group["targets"]} <= SERVICES.keys()


def test_emqx_starts_with_a_cookie_a_dashboard_and_no_default_password(made: Path) -> None:
    """Its configuration replaces the image's, which held the cookie; 5.8 opens no dashboard by itself; `admin` had `public`."""
    given = dict(line.split("=") for line in (made / "emqx.env").read_text().splitlines())

    assert SERVICES["emqx"]["env_file"] == ["secrets/emqx.env"]
    assert given.keys() == {"EMQX_NODE__COOKIE", "EMQX_DASHBOARD__DEFAULT_PASSWORD"}
    assert min(map(len, given.values())) >= 48
    assert "http { bind = 18083 }" in (HERE / "etc/emqx.conf").read_text()
