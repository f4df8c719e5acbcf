"""`require_tls`: plaintext endpoints are refused by the name of their setting, without their secrets."""

import pytest

from manifold.contracts.errors import SettingsError
from manifold.settings import load_settings

TLS_SCHEME_OF = {"http_certificate": "/etc/tls.crt", "mqtt_url": "mqtts://emqx:8884", "host": "0.0.0.0", "http_token": "t"}
CLEAR = [
    ("mqtt_url", "mqtt://emqx:1884", "MQTT_URL must begin with mqtts://"),
    ("mqtt_vehicle_url", "tcp://emqx:1883", "MQTT_VEHICLE_URL must begin with mqtts://"),
    ("emqx_api_url", "http://emqx:18083/api/v5", "EMQX_API_URL must begin with https://"),
    ("redis_url", "redis://u:hidden@redis:6379/0", "REDIS_URL must begin with rediss://"),
    ("redis_url", "redis+cluster://u:hidden@redis:6379/0", "REDIS_URL must begin with rediss://"),
    ("signals_redis_url", "redis://u:hidden@redis", "SIGNALS_REDIS_URL must begin with rediss://"),
    ("signals_amqp_url", "amqp://u:hidden@rabbitmq:5672/", "SIGNALS_AMQP_URL must begin with amqps://"),
    ("signals_operator_url", "amqp://u:hidden@rabbitmq", "SIGNALS_OPERATOR_URL must begin with amqps://"),
    ("signals_traces_url", "http://collector:4318/v1/traces", "SIGNALS_TRACES_URL must begin with https://"),
    ("s3_endpoint", "http://store:7070", "S3_ENDPOINT must begin with https://"),
    ("catalog_uri", "postgresql+psycopg://u:hidden@postgres/catalog", "CATALOG_URI must ask for sslmode=verify-full"),
    ("catalog_uri", "postgresql+psycopg://u:hidden@postgres/c?sslmode=require", "CATALOG_URI must ask for sslmode=verify-full"),
    ("catalog_uri", "postgresql+psycopg://u:hidden@/c?host=postgres", "CATALOG_URI must ask for sslmode=verify-full"),
    ("catalog_uri", "postgresql+psycopg://u:hidden@localhost/c?host=postgres", "CATALOG_URI must ask for sslmode=verify-full"),
    (
        "catalog_uri",
        "postgresql://u:hidden@pg/c?sslmode=verify-full&sslmode=disable",
        "CATALOG_URI must ask for sslmode=verify-full",
    ),
    ("redis_url", "rediss://u:hidden@redis:6379/0?ssl_cert_reqs=none", "REDIS_URL must not set ssl_cert_reqs"),
    ("redis_url", "rediss://u:hidden@redis:6379/0?ssl_check_hostname=False", "REDIS_URL must not set ssl_check_hostname"),
    ("signals_amqp_url", "amqps://u:hidden@rabbitmq:5671/?no_verify_ssl=1", "SIGNALS_AMQP_URL must not set no_verify_ssl"),
    ("api_url", "http://api:9104", "API_URL must begin with https://"),
    ("recorder_urls", "https://recorder-0:9101,http://recorder-1:9101", "RECORDER_URLS must begin with https://"),
    ("lineage_url", "http://lineage:5000", "LINEAGE_URL must begin with https://"),
    ("alert_url", "http://chat.example/hidden", "ALERT_URL must begin with https://"),
    ("catalog_properties", '{"oauth2-server-uri": "http://login.example/token"}', "CATALOG_PROPERTIES must begin with https://"),
    ("http_certificate", "", "HTTP_CERTIFICATE must name a certificate"),
    ("mqtt_url", "", "MQTT_URL must begin with mqtts://"),  # then it is on this non-loopback host
]
KEPT = [
    ("redis_url", "rediss://u:p@redis:6379/0"),
    ("redis_url", "rediss+cluster://u:p@redis:6379/0"),
    ("redis_url", "redis://127.0.0.1:6379/0"),
    ("catalog_uri", "postgresql+psycopg://u:p@postgres/catalog?sslmode=verify-full"),
    ("catalog_uri", "postgresql+psycopg://u:p@/catalog?host=/run/postgresql"),
    ("redis_url", "rediss://u:p@redis:6379/0?ssl_cert_reqs=required&ssl_ca_certs=/etc/ca.crt"),
    ("catalog_uri", "sqlite:////var/lib/catalog.db"),
    ("lineage_url", "file:///var/lib/lineage"),
    ("archive_url", "s3://bucket/archive"),
    ("catalog_properties", '{"header.x": "a:b"}'),
]


@pytest.mark.parametrize(("name", "value", "said"), CLEAR)
def test_plaintext_endpoints_are_refused(name: str, value: str, said: str) -> None:
    given = TLS_SCHEME_OF | {name: value}
    load_settings(**given)
    with pytest.raises(SettingsError, match=rf"MANIFOLD_{said}") as refused:
        load_settings(**given, require_tls=True)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(("name", "value"), KEPT)
def test_encrypted_and_local_endpoints_are_accepted(name: str, value: str) -> None:
    load_settings(**TLS_SCHEME_OF | {name: value}, require_tls=True)


def test_on_loopback_the_sandbox_needs_no_tls() -> None:
    load_settings(require_tls=True)


def test_all_plaintext_endpoints_are_reported_together() -> None:
    with pytest.raises(SettingsError, match=r"MQTT_URL .*; MANIFOLD_HTTP_CERTIFICATE"):
        load_settings(require_tls=True, host="0.0.0.0")
