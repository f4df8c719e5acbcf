"""Settings of the signals service: contract names, no default secret, no placeholder, no secret shown."""

import pytest
from pydantic import SecretStr

from manifold.contracts.errors import SettingsError
from manifold.contracts.signals.messages import MAX_PAYLOAD
from manifold.messaging.amqp import connection_url, hmac_secrets, shown_url
from manifold.settings import Settings, load_settings, source_of
from manifold.settings.signals import CONTRACT_NAMES

SECRETS = ("signals_hmac_secret", "signals_hmac_accepted", "signals_amqp_url", "signals_redis_url", "signals_keys")


def test_contract_names_are_accepted_and_the_setting_name_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "RABBITMQ_URI": "amqp://gateway:x@rabbit:5672/",
        "RABBITMQ_PREFETCH": "70",
        "REDIS_URI": "redis://other:6379/3",
        "IDEMP_TTL_SEC": "60",
        "HMAC_SECRET_KEY": "as the contract names it",
        "HMAC_TIMESTAMP_TOLERANCE": "30",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = load_settings()

    assert connection_url(settings) == given["RABBITMQ_URI"]
    assert settings.signals_redis == given["REDIS_URI"]
    assert (settings.signals_prefetch, settings.signals_idempotency_seconds, settings.signals_tolerance_seconds) == (70, 60, 30)
    assert hmac_secrets(settings) == ("as the contract names it",)
    assert source_of("signals_prefetch") == "RABBITMQ_PREFETCH"
    assert settings.redis != settings.signals_redis  # other parts keep their own setting

    monkeypatch.setenv("MANIFOLD_SIGNALS_PREFETCH", "5")
    assert load_settings().signals_prefetch == 5
    assert source_of("signals_prefetch") == "MANIFOLD_SIGNALS_PREFETCH"


def test_every_contract_name_maps_to_a_setting() -> None:
    assert set(CONTRACT_NAMES.values()) <= set(Settings.model_fields)


def test_there_is_no_default_secret() -> None:
    assert [name for name in SECRETS if Settings.model_fields[name].default.get_secret_value()] == []


@pytest.mark.parametrize("text", ["your-secret-key", "default-secret", "changeme", "CHANGE-ME-now", "<secret>", "secret"])
@pytest.mark.parametrize("name", ["signals_hmac_secret", "HMAC_SECRET_KEY"])
def test_a_placeholder_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(name if name.isupper() else f"MANIFOLD_{name.upper()}", text)

    with pytest.raises(SettingsError, match="placeholder") as refused:
        load_settings()
    assert f"={text}" not in str(refused.value)
    assert repr(text) not in str(refused.value)


@pytest.mark.parametrize("text", ["no array", "[1]", '[""]', '{"a": 1}', '["your-secret"]'])
def test_accepted_secrets_are_an_array_of_secrets(text: str) -> None:
    with pytest.raises(SettingsError, match="SIGNALS_HMAC_ACCEPTED") as refused:
        load_settings(signals_hmac_accepted=text)
    assert text not in str(refused.value)


def test_the_current_secret_comes_first_and_each_is_listed_once() -> None:
    settings = load_settings(signals_hmac_secret="new", signals_hmac_accepted='["old", "new"]')

    assert hmac_secrets(settings) == ("new", "old")


def test_no_secret_is_in_printed_settings() -> None:
    schemes = {"signals_amqp_url": "amqp://", "signals_operator_url": "amqp://", "signals_redis_url": "redis://"}
    own_form = ("signals_hmac_accepted", "signals_keys")
    given = {name: f"{schemes.get(name, '')}hidden-text" for name in SECRETS if name not in own_form}
    settings = load_settings(**given, signals_hmac_accepted='["hidden-text"]')

    assert "hidden-text" not in f"{settings!r} {settings.model_dump(mode='json')}"
    assert shown_url(load_settings()) == "amqp://127.0.0.1:5680"


def test_no_payload_limit_may_exceed_the_contract() -> None:
    """The schema refuses larger payloads anyway, so a larger limit would be a false promise."""
    assert load_settings(signals_max_payload=MAX_PAYLOAD).signals_max_payload == 1_048_576
    with pytest.raises(SettingsError, match="MANIFOLD_SIGNALS_MAX_PAYLOAD"):
        load_settings(signals_max_payload=MAX_PAYLOAD + 1)


EVERY_SECRET = {name for name, field in Settings.model_fields.items() if field.annotation is SecretStr}
FORMS = {
    "catalog_properties": '{"credential": "id:secret"}',
    "catalog_uri": "postgresql://user:password@host/database",
    "lineage_url": "https://host/lineage",
    "redis_url": "redis://:password@host:6379",
    "signals_amqp_url": "amqp://user:password@host:5672",
    "signals_hmac_accepted": '["a-former-secret-of-the-site"]',
    "signals_operator_url": "amqp://user:password@host:5672",
    "signals_redis_url": "redis://:password@host:6379",
}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", sorted(EVERY_SECRET))
def test_a_line_end_is_no_part_of_any_secret(monkeypatch: pytest.MonkeyPatch, name: str, end: str) -> None:
    """Orchestrators write a file's line end into the variable, which would invalidate every signature."""
    secret = FORMS.get(name, "a-secret-of-the-site")
    monkeypatch.setenv(f"MANIFOLD_{name.upper()}", secret + end)

    assert getattr(load_settings(), name).get_secret_value() == secret
