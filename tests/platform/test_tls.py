"""`MANIFOLD_TLS=true make up`: a batch from a publisher to a vehicle, each identified by its certificate."""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import redis
from cryptography import x509
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError
from redis.retry import Retry
from typer.testing import CliRunner

from manifold.archive.flush import close_segments
from manifold.archive.recorded import RecordedSegments
from manifold.archive.store import Archive
from manifold.console import _watch
from manifold.console._app import make_app
from manifold.contracts import keys, topics
from manifold.contracts.campaigns import Note, encode
from manifold.contracts.envelope import Stream
from manifold.contracts.messages import ReceiptStatus, sha1_hex
from manifold.contracts.tls import OF_INNER, OPERATOR, SECRETS, SERVER, Service, TlsFiles
from manifold.messaging.mqtt import Mqtt
from manifold.messaging.publisher import Publisher
from manifold.runtime.redis import connect
from manifold.runtime.tls import client_context, verified, web_context
from manifold.sandbox.fleet import Fleet, vins
from manifold.sandbox.platform import certificates, rabbitmq, redis_certificates, supervise
from manifold.sandbox.platform.programs import environment
from manifold.settings import Settings
from tests.support.platforms import platform_settings
from tests.support.rabbitmq import needs_rabbitmq
from tests.support.redis_users import refused
from tests.support.servers import wait_until

NOT_AUTHORIZED = 0x87  # reason code of MQTT 5
PAYLOAD = b"map" * 40_000  # more than one TLS record


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    signals = rabbitmq.server_script() is not None
    settings = platform_settings(tmp_path_factory.mktemp("secure"), tls=True, with_signals=signals, segment_max_seconds=2)
    supervise.up(settings)
    try:
        yield settings
    finally:
        supervise.down(settings)


async def deliver(settings: Settings, request_id: str) -> None:
    cars = vins(3, seed=7)
    async with Fleet(settings, cars, seed=7) as fleet, Publisher(settings) as platform:
        await fleet.connect()
        await platform.data(sha1_hex(PAYLOAD), PAYLOAD)
        receipt = await platform.trigger(cars, request_id, sha1_hex(PAYLOAD))
        assert receipt.status is ReceiptStatus.RECORDED
        await fleet.wait_for(
            lambda it: len({each.vin for each in it.acknowledged if each.request_id == request_id}) == len(cars), 30
        )
        assert {each.payload_sha1 for each in fleet.received if each.request_id == request_id} == {sha1_hex(PAYLOAD)}


def test_a_batch_reaches_vehicles_with_certificates(secure: Settings) -> None:
    addresses = supervise.Addresses.of(secure)
    assert addresses.mqtt == f"mqtts://127.0.0.1:{secure.mqtt_port}"
    assert addresses.mqtt_services == f"mqtts://127.0.0.1:{secure.mqtt_services_port}"
    assert addresses.redis.startswith("rediss://")
    assert addresses.amqp.startswith("amqps://")
    asyncio.run(deliver(secure, "task_tls_1"))


def test_orders_and_answers_are_recorded_by_certificate(secure: Settings, tmp_path: Path) -> None:
    """Of a campaign: an order of the user for orders alone, and an answer of the vehicle itself alone."""
    order, answer = Note("maps-47", "ann"), b'{"seq": 7, "status": "done"}'
    own, other = vins(2, seed=8)

    def client(url: str, client_id: str, file: Path, username: str | None = None) -> Mqtt:
        return Mqtt(url, client_id, username=username, tls=TlsFiles(secure.tls_files("").ca, str(file)))

    async def scenario() -> None:
        async with Publisher(secure, secure.mqtt_username_campaigns) as campaigns:
            assert (await campaigns.order(order)).status is ReceiptStatus.RECORDED
        name, vehicle = secure.mqtt_username_publisher, tmp_path / "vehicle.pem"
        vehicle.write_bytes(certificates.issue(secure.home, own))
        async with (
            client(secure.mqtt, f"{name}-order", secure.home / SECRETS / f"{name}.pem", name) as publisher,
            client(secure.mqtt_for_vehicles, own, vehicle) as car,
        ):
            await publisher.wait_connected()
            await car.wait_connected()
            assert await publisher.publish(topics.CAMPAIGN, encode(order)) == NOT_AUTHORIZED
            assert await car.publish(topics.CAMPAIGN, encode(order)) == NOT_AUTHORIZED
            for vin in (other, own):
                reason = await car.publish(topics.response_topic(secure.topic_prefix, vin, "maps-47"), answer)
                assert (reason == NOT_AUTHORIZED) == (vin == other)

    asyncio.run(scenario())
    archive = RecordedSegments(Archive(secure.archive))

    def recorded(stream: Stream) -> list[tuple[str, bytes]]:
        return [(e.topic, e.payload) for e in archive.recorded_since(stream, 0) if e.refused_because is None]

    topic = topics.response_topic(secure.topic_prefix, own, "maps-47")
    wait_until(lambda: recorded(Stream.ANSWER) and recorded(Stream.CAMPAIGN), what="both messages to be archived")
    assert recorded(Stream.ANSWER) == [(topic, answer)]
    assert recorded(Stream.CAMPAIGN) == [(topics.CAMPAIGN, encode(order))]


def test_renewing_every_certificate_interrupts_nothing(secure: Settings) -> None:
    before = supervise.status(secure).processes
    shown = of_redis(secure)
    assert len(certificates.renew(secure, within_days=certificates.LEAF_DAYS + 1)) == len(certificates.leaves(secure)) == 13
    redis_certificates.reload(secure)
    assert of_redis(secure) != shown
    faces = http_of(secure)
    wait_until(
        lambda: {of_web(secure, port) for port in faces.values()} == {of_redis(secure)},
        what="all servers to present the new certificate",
    )
    assert set(expiries(secure).values()) >= {kept_until(secure)}, "and its reported expiry is new"
    asyncio.run(deliver(secure, "task_tls_2"))
    assert supervise.status(secure).processes == before


def expiries(settings: Settings) -> dict[str, float]:
    """The certificate files reported by the services, and their expiry."""
    found: dict[str, float] = {}
    for port in http_of(settings).values():
        page = httpx.get(f"{settings.http(port)}/metrics", verify=verified(settings, settings.http(port)), trust_env=False).text
        for family in text_string_to_metric_families(page):
            if family.name == "manifold_certificate_expires_timestamp_seconds":
                found |= {sample.labels["file"]: sample.value for sample in family.samples}
    return found


def kept_until(settings: Settings) -> float:
    """The expiry of the server's certificate."""
    return x509.load_pem_x509_certificate((settings.home / SECRETS / SERVER).read_bytes()).not_valid_after_utc.timestamp()


def test_the_expiry_of_every_certificate_ca_and_crl_is_reported(secure: Settings) -> None:
    told, folder = expiries(secure), secure.home / SECRETS
    unused = set() if secure.with_signals else {OF_INNER.format("signals")}
    assert set(told) == {
        str(file) for file in folder.glob("*.pem") if not file.name.endswith("-key.pem") and file.name not in unused
    }
    assert told[str(folder / SERVER)] == kept_until(secure)
    assert min(told.values()) > time.time() + 6 * 86400


def as_service(settings: Settings, service: Service) -> Settings:
    return settings.model_copy(update={"tls_service": service})


def test_each_service_uses_its_own_redis_user_without_refusals(secure: Settings) -> None:
    asyncio.run(deliver(secure, "task_tls_3"))
    own: list[Service] = ["recorder", "dispatcher", "campaigner", "api", *(["signals"] if secure.with_signals else [])]  # type: ignore[list-item]
    with connect(secure.redis) as operator:
        trust = web_context(secure, secure.api) or True
        assert httpx.get(f"{secure.api}/api/v1/vins/{vins(1, seed=7)[0]}", verify=trust, trust_env=False).status_code == 200
        wait_until(
            lambda: {each["user"] for each in operator.client_list()} == {*own, OPERATOR}, what="each service to be scraped"
        )
        assert refused(operator) == []


@pytest.mark.parametrize(
    ("service", "act"),
    [
        ("api", lambda redis: redis.set(keys.LOADED, 1)),
        ("signals", lambda redis: redis.xlen(keys.OUTCOMES)),
        ("recorder", lambda redis: redis.delete(keys.QUEUE_STATS)),
        ("dispatcher", lambda redis: redis.hset(keys.recorders(0), "place", "claim")),
        ("jobs", lambda redis: redis.flushall()),
    ],
)
def test_a_service_is_refused_foreign_redis_keys(secure: Settings, service: Service, act: Callable[[Redis], Any]) -> None:
    with connect(as_service(secure, service).redis) as redis:
        assert redis.ping()
        with pytest.raises(NoPermissionError):
            act(redis)
    shown, password = inside(secure, service), urlsplit(secure.redis).password
    at_once = Retry(NoBackoff(), 0)  # the library retries a refused login for seconds
    with Redis(port=secure.redis_port, retry=at_once, ssl=True, ssl_ca_certs=shown.ca, ssl_certfile=shown.certificate) as nobody:
        with pytest.raises(AuthenticationError):  # a certificate alone is not enough
            nobody.get(keys.LOADED)
        with pytest.raises(AuthenticationError):  # nor is another service's password
            nobody.execute_command("AUTH", service, password)
    with connect(secure.redis) as operator:
        operator.acl_log_reset()


def test_redis_passwords_are_only_in_secret_files(secure: Settings) -> None:
    passwords = [file.read_text().strip() for file in (secure.home / SECRETS).glob("redis_*")]
    assert len(passwords) == len(set(passwords)) == 7
    told = [
        file.read_text(errors="replace")
        for place in ("run", "logs")
        for file in (secure.home / place).iterdir()
        if file.is_file()
    ]
    assert told
    assert not [text for text in told for password in passwords if password in text]


def inside(settings: Settings, service: Service = OPERATOR) -> TlsFiles:
    """The client certificate for Redis and RabbitMQ."""
    return TlsFiles(settings.tls_files("").ca, str(settings.home / SECRETS / OF_INNER.format(service)))


def asked(port: int, context: ssl.SSLContext, said: bytes = b"") -> tuple[bytes, bytes]:
    """The certificate of a server and its answer."""
    with (
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        secured.sendall(said)
        return secured.getpeercert(binary_form=True) or b"", secured.recv(64) if said else b""


def of_redis(settings: Settings) -> bytes:
    """The certificate of Redis."""
    return asked(settings.redis_port, client_context(inside(settings)))[0]


def of_web(settings: Settings, port: int) -> bytes:
    """The certificate of a service's HTTP server."""
    return asked(port, client_context(TlsFiles(settings.tls_files("").ca)))[0]


def http_of(settings: Settings) -> dict[str, int]:
    """The port of each service's own HTTP server."""
    kinds = ("recorder", "dispatcher", "campaigner", "tap", "api", *(("signals",) if settings.with_signals else ()))
    return {kind: getattr(settings, f"{kind}_port") for kind in kinds}


def test_every_service_serves_http_over_tls_only(secure: Settings) -> None:
    assert supervise.Addresses.of(secure).api == f"https://127.0.0.1:{secure.api_port}"
    for kind, port in http_of(secure).items():
        url = secure.http(port)
        trust = web_context(secure, url)
        assert trust is not None, kind
        assert httpx.get(f"{url}/livez", verify=trust, trust_env=False).status_code == 200, kind
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/livez", trust_env=False)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{url}/livez", trust_env=False)


def test_jobs_and_console_connect_over_tls(secure: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert close_segments(secure) == {}
    for name, value in environment(secure).items():
        monkeypatch.setenv(name, value)
    told = CliRunner().invoke(make_app("doctor"), ["doctor"])
    assert told.exit_code == 0, told.output
    for kind in ("recorder", "dispatcher"):  # as `manifold watch` does, which shows zeros if nobody responds
        assert f"{kind}_" in _watch.metrics_page(secure, getattr(secure, f"{kind}_port"))


def test_redis_refuses_plaintext_and_missing_certificates(secure: Settings) -> None:
    at_once = Retry(NoBackoff(), 0)
    with pytest.raises(redis.ConnectionError):
        redis.Redis(port=secure.redis_port, retry=at_once).ping()
    ca = secure.tls_files("").ca
    with pytest.raises(redis.ConnectionError):
        redis.Redis(port=secure.redis_port, ssl=True, ssl_ca_certs=ca, retry=at_once).ping()


@pytest.mark.parametrize("name", ["5YJBT6ZE7T7002409", "sdv-dispatcher"])
def test_front_door_certificates_open_neither_redis_nor_rabbitmq(secure: Settings, tmp_path: Path, name: str) -> None:
    file = tmp_path / "client.pem"
    file.write_bytes(certificates.issue(secure.home, name))
    shown, known = client_context(TlsFiles(secure.tls_files("").ca, str(file))), client_context(inside(secure))
    assert asked(secure.redis_port, known, b"PING\r\n")[1].startswith(b"-NOAUTH")
    doors = {secure.redis_port: b"PING\r\n"} | ({secure.amqp_port: b"AMQP\0\0\x09\x01"} if secure.with_signals else {})
    for port, said in doors.items():
        with pytest.raises(OSError):
            asked(port, shown, said)


def test_rabbitmq_refuses_plaintext_and_missing_certificates(secure: Settings) -> None:
    needs_rabbitmq()
    begin = b"AMQP\0\0\x09\x01"
    known = client_context(inside(secure))
    assert asked(secure.amqp_port, known, begin)[1].startswith(b"\1"), "a frame of AMQP"
    with socket.create_connection(("127.0.0.1", secure.amqp_port), 10) as plain:
        plain.sendall(begin)
        assert not plain.recv(64).startswith(b"\1"), "a TLS alert or nothing is not an answer"
    stranger = client_context(TlsFiles(secure.tls_files("").ca))
    with pytest.raises(OSError):  # with TLS 1.3 the refusal replaces the first answer
        asked(secure.amqp_port, stranger, begin)
