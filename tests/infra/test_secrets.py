"""Secrets of infra/terraform/secrets.sh: accepted by services and Redis, and on no command line."""

import json
import re
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pydantic import SecretStr
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError
from redis.retry import Retry

from manifold.api._callers import Caller, Callers, Right
from manifold.contracts.signals import rights
from manifold.settings import Settings, load_settings
from tests.infra.environments import TERRAFORM
from tests.infra.made import made_up
from tests.support.redis_users import SERVICES
from tests.support.servers import free_port, start, stopping


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The content of each Secret by name."""
    made = made_up(tmp_path_factory.mktemp("secrets") / "kept", "secrets.sh")
    secrets, called = made.secrets(), made.called()
    assert not any(value in called for values in secrets.values() for value in values.values())
    return secrets


@pytest.mark.parametrize("service", SERVICES)
def test_the_settings_file_of_a_service_is_valid(
    made: dict[str, dict[str, str]], service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "manifold.toml").write_text(made["manifold"][f"{service}.toml"])
    monkeypatch.setenv("MANIFOLD_FILE", str(tmp_path / "manifold.toml"))
    settings = load_settings(host="0.0.0.0", mqtt_url="mqtts://emqx:8884", http_certificate="/etc/tls.crt", require_tls=True)
    assert settings.http_token.get_secret_value() == made["manifold"]["http-token"]
    assert settings.redis.startswith(f"rediss://{service}:")
    assert settings.s3.secret_key == made["object-store"]["secret-key"]
    assert made["postgres"]["catalog-password"] in settings.catalog
    assert bool(settings.signals_keys.get_secret_value()) == (service in {"signals", "api", "jobs"})
    assert bool(settings.signals_amqp_url.get_secret_value()) == (service == "signals")
    assert bool(settings.emqx_api_key) == (service == "dispatcher")


def test_shared_passwords_agree_and_others_differ(made: dict[str, dict[str, str]]) -> None:
    assert f"airflow:{made['postgres']['airflow-password']}@" in made["airflow"]["sql-alchemy-conn"]
    assert len(set(json.loads(made["airflow"]["passwords.json"]).values())) == 3
    definitions = json.loads(made["rabbitmq"]["definitions.json"])
    passwords = {user["name"]: user["password"] for user in definitions["users"]}
    assert {name: definitions[name] for name in rights.permissions()} == rights.permissions()
    assert passwords.keys() == rights.RIGHTS.keys()
    assert len(set(passwords.values())) == len(passwords)
    assert [user for user in passwords if passwords[user] in "".join(made["manifold"].values())] == ["door", "operator"]
    assert f"amqps://door:{passwords['door']}@rabbitmq.manifold.svc" in made["manifold"]["signals.toml"]
    assert f"amqps://operator:{passwords['operator']}@rabbitmq.manifold.svc" in made["manifold"]["signals.toml"]
    assert made["emqx"]["cookie"].isalnum()


def test_airflow_has_a_named_token_that_orders_for_its_users(made: dict[str, dict[str, str]], tmp_path: Path) -> None:
    token = tomllib.loads(made["manifold"]["jobs.toml"])["api_token"]
    assert [key for key, value in made["manifold"].items() if token in value] == ["jobs.toml"]
    path = tomllib.loads(made["manifold"]["api.toml"])["api_tokens_file"]
    pod = (TERRAFORM / "modules" / "manifold" / "manifests" / "api.yaml.tftpl").read_text()
    assert path == "/etc/manifold/api-tokens"
    assert "{key: api-tokens, path: api-tokens}" in pod
    assert "{name: settings, mountPath: /etc/manifold, readOnly: true}" in pod
    (tmp_path / "api-tokens").write_text(made["manifold"]["api-tokens"])
    callers = Callers.of(Settings(api_tokens_file=str(tmp_path / "api-tokens")))
    rights = frozenset({Right.READ, Right.APPROVE, Right.BRAKE, Right.DELEGATE})
    assert callers.identify(f"Bearer {token}") == Caller("airflow", rights)


def test_redis_loads_its_users_and_an_anonymous_client_may_only_ping(made: dict[str, dict[str, str]], tmp_path: Path) -> None:
    (tmp_path / "users.acl").write_text(made["redis"]["users.acl"])
    port = free_port()
    command = [
        "redis-server",
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--dir",
        str(tmp_path),
        "--aclfile",
        str(tmp_path / "users.acl"),
    ]
    with stopping(start(command, port=port, log=tmp_path / "redis.log")):
        at_once = Retry(NoBackoff(), 0)  # the library retries a refused login for seconds
        for user, password in ((None, None), ("default", "any"), ("default", "")):
            with (
                Redis(port=port, username=user, password=password, retry=at_once) as stranger,
                pytest.raises(AuthenticationError),
            ):
                stranger.ping()
        with Redis(port=port, username="probe", password="any") as stranger:
            assert stranger.ping()
            with pytest.raises(NoPermissionError):
                stranger.get("p:VIN")
        for service in SERVICES:
            told = tomllib.loads(made["manifold"][f"{service}.toml"])["redis_url"]
            user, password = urlsplit(told).username, urlsplit(told).password
            with Redis(port=port, username=user, password=password) as ours:
                assert (user, ours.ping()) == (service, True)


def test_a_secret_among_the_public_settings_is_refused() -> None:
    """Public settings are in Terraform's state and in a ConfigMap."""
    refused = re.findall(r'!can\(regex\("(\(password[^"]*\))"', (TERRAFORM / "variables.tf").read_text())[0]
    secret = [name for name, field in Settings.model_fields.items() if field.annotation is SecretStr]
    assert len(secret) > 10
    assert [name for name in secret if not re.search(refused, name)] == []
