"""An external broker as `manifold doctor` sees it: a Mosquitto with and without the tap and access rules."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from manifold.console._broker_probe import probe
from manifold.console._diagnostic import Diagnostic
from manifold.console._doctor import examine
from manifold.sandbox.platform.addresses import Addresses
from manifold.settings import Settings, load_settings
from tests.manifold.sandbox.tap.conftest import open_tap_server
from tests.support.servers import free_port, start_mosquitto, stopping


def judged(port: int, **more: object) -> dict[str, Diagnostic]:
    settings = load_settings(mqtt_url=f"mqtt://127.0.0.1:{port}", **more)
    return {finding.check: finding for finding in asyncio.run(probe(settings))}


def test_a_broker_with_events_and_access_rules_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manifold.console._broker_probe.WAIT_S", 60.0)
    server = open_tap_server(tmp_path)
    try:
        found = judged(server.port)
    finally:
        server.stop()

    assert {name: (finding.passed, finding.seen) for name, finding in found.items()} == {
        "broker": (True, f"mqtt://127.0.0.1:{server.port}"),
        "broker's events": (True, "connected, subscribed and acked are published"),
        "broker's access rules": (True, "as expected"),
    }


def test_a_default_broker_sends_no_events_and_has_no_access_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manifold.console._broker_probe.WAIT_S", 1.0)
    with stopping(start_mosquitto(tmp_path)) as plain:
        found = judged(plain.port)

    assert found["broker"].passed
    assert found["broker's events"].seen == "no event connected, subscribed, acked"
    assert found["broker's access rules"].seen == "a vehicle may publish events; a vehicle gets what is addressed to another one"
    assert all("docs/guides/emqx.md" in found[name].remedy for name in ("broker's events", "broker's access rules"))


def test_an_unreachable_broker_or_one_requiring_a_password_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manifold.console._broker_probe.WAIT_S", 1.0)
    nobody = free_port()
    assert list(judged(nobody)) == ["broker"]
    assert f"no connection to 127.0.0.1:{nobody}" in judged(nobody)["broker"].seen

    passwords = tmp_path / "passwords"
    for name, password in (("sdv-dispatcher", "of-services"), ("V1", "of-v1")):
        subprocess.run(["mosquitto_passwd", *([] if passwords.exists() else ["-c"]), "-b", passwords, name, password], check=True)
    with stopping(start_mosquitto(tmp_path, extra=f"password_file {passwords}", anonymous=False)) as strict:
        stranger = judged(strict.port, mqtt_password="of-services")
        known = judged(strict.port, mqtt_password="of-services", mqtt_probe_username="V1", mqtt_probe_password="of-v1")
        wrong = judged(strict.port, mqtt_password="not-it")

    assert "MANIFOLD_MQTT_PROBE_USERNAME" in stranger["broker, for vehicles"].remedy
    assert "not_authorized" in stranger["broker, for vehicles"].seen
    assert "broker's events" in known
    assert not wrong["broker"].passed


def test_with_an_external_broker_the_doctor_skips_the_tap_and_a_disabled_airflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("manifold.console._broker_probe.WAIT_S", 0.2)
    settings = Settings(home=tmp_path, mqtt_url=f"mqtt://127.0.0.1:{free_port()}", redis_port=free_port(), with_airflow=False)
    checks = [finding.check for finding in examine(settings)]

    assert "broker" in checks
    assert not {"tap", "mosquitto", "airflow"} & set(checks)
    assert {"tap", "mosquitto", "airflow"} <= {f.check for f in examine(Settings(home=tmp_path, redis_port=settings.redis_port))}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "mqtt://127.0.0.1:1883"),
        ({"mqtt_url": "mqtt://emqx:1884"}, "mqtt://emqx:1883"),
        ({"mqtt_url": "mqtts://emqx:8883"}, "mqtts://emqx:8883"),
        ({"mqtt_url": "mqtt://emqx:1884", "mqtt_vehicle_url": "mqtts://cars.example:8883"}, "mqtts://cars.example:8883"),
    ],
)
def test_status_shows_the_address_of_the_broker_for_vehicles(given: dict[str, str], told: str) -> None:
    settings = Settings.model_validate(given)

    assert Addresses.of(settings).to_json()["mqtt"] == told
    assert Addresses.of(settings).to_json()["mqtt_services"] == given.get("mqtt_url", told)


def test_over_tls_the_vehicle_probe_is_skipped_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that requires vehicle certificates presents a certificate of their CA and knows no service on that port."""
    monkeypatch.setattr("manifold.console._broker_probe.WAIT_S", 5.0)
    with stopping(start_mosquitto(tmp_path)) as plain:
        found = judged(plain.port, mqtt_vehicle_url="mqtts://cars.example:8883")

    assert {name: finding.passed for name, finding in found.items()} == {"broker": True, "broker, for vehicles": True}
    assert "not asked: mqtts://cars.example:8883 takes a vehicle's certificate" in found["broker, for vehicles"].seen
