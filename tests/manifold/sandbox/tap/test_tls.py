"""The tap with TLS: a client is identified by its certificate, and certificates expire or are revoked."""

import os
import shutil
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from manifold.contracts.tls import CA, OF_INNER, OPERATOR, REVOKED, SECRETS, SERVER, TlsFiles
from manifold.contracts.topics import TRIGGER, request_filter
from manifold.runtime.tls import client_context, revoked_serials
from manifold.sandbox.platform import cert_registry, certificates
from manifold.sandbox.platform.authority import FRONT_DOOR, certificate, pem_of
from manifold.sandbox.platform.programs import environment
from manifold.sandbox.tap.identity import Identity, is_platform, is_vehicle
from manifold.sandbox.tap.packets import Connect, packet, string
from manifold.settings import Settings
from tests.manifold.sandbox.tap.raw_connection import CONNACK, PUBACK, RawConnection, publish
from tests.support.console import ask, manifold
from tests.support.servers import Server, free_port, start_embedded_broker, start_tap, wait_until

NOT_VALID, NOT_VALID_3_1_1 = 0x85, 2
TODAY = datetime.now(UTC)
AGED, ANNOUNCED, LATELY = (TODAY - timedelta(days=days) for days in (310, 65, 6))


class Site:
    """A broker and a tap with TLS, and certificates for any client."""

    def __init__(self, home: Path) -> None:
        ports = {name: free_port() for name in ("mqtt_port", "mqtt_services_port", "broker_port", "tap_port")}
        self.settings = Settings(home=home, tls=True, **ports)  # type: ignore[arg-type]  # all values are ports
        self._age()
        self.broker = start_embedded_broker(self.settings)
        try:
            self.tap: Server = start_tap(self.settings)
        except BaseException:
            self.broker.stop()
            raise

    def _age(self) -> None:
        """Age its CA so that its successor was announced long ago and signs from the next check on."""
        certificates.create_missing(self.settings, now=AGED)
        assert certificates.maintain(self.settings, now=ANNOUNCED)[:2] == ["ca.pem: announce", "inner-ca.pem: announce"]
        certificates.maintain(self.settings, now=LATELY)

    @property
    def secrets(self) -> Path:
        return self.settings.home / SECRETS

    def stop(self) -> None:
        self.tap.stop()
        self.broker.stop()

    def context(self, name: str, *, days: float = 1, now: datetime | None = None) -> ssl.SSLContext:
        """The TLS context of a client with a certificate for this common name."""
        file = self.secrets / f"issued-{name}.pem"
        file.write_bytes(certificates.issue(self.settings.home, name, days=days, now=now))
        return client_context(TlsFiles(str(self.secrets / CA), str(file)))

    def vehicle(self, name: str, *, version: int = 5) -> RawConnection:
        return RawConnection(self.settings.mqtt_port, version=version, tls=self.context(name))

    def platform(self, name: str) -> RawConnection:
        return RawConnection(self.settings.mqtt_services_port, tls=self.context(name))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """For tests that isolate themselves by client id."""
    found = Site(tmp_path_factory.mktemp("tls"))
    yield found
    found.stop()


def refused(connection: RawConnection) -> bool:
    """Whether the server ends the connection: in the handshake or, with TLS 1.3, right after it."""
    try:
        connection.open("nobody")
    except (EOFError, OSError):
        return True
    return False


def test_a_vehicle_with_its_certificate_connects_and_reads_its_topics(site: Site, vin: str) -> None:
    with site.vehicle(vin) as connection:
        assert connection.open(vin).reason == 0
        assert connection.listen(request_filter("agent", vin)).body[-1] == 1


@pytest.mark.parametrize(("version", "code"), [(5, NOT_VALID), (4, NOT_VALID_3_1_1)], ids=["5", "3.1.1"])
def test_a_client_id_other_than_that_of_the_certificate_is_refused(site: Site, vin: str, version: int, code: int) -> None:
    with site.vehicle(vin, version=version) as connection:
        assert connection.open(f"{vin}-other").reason == code
        with pytest.raises(EOFError):
            connection.next()


@pytest.mark.parametrize("username", ["sdv-recorder", "sdv-dispatcher", "sdv-pub-console", "sdv-tap"])
def test_a_vehicle_is_never_a_service_under_any_user_name(site: Site, vin: str, username: str) -> None:
    with site.vehicle(vin) as connection:
        assert connection.open(vin, username=username).reason == NOT_VALID


def test_a_user_name_after_an_oversized_will_is_refused(site: Site, vin: str) -> None:
    will = string(b"will") + b"".join([(0xFFFF).to_bytes(2), b"x" * 0xFFFF])
    filler = b"".join(b"\x26" + string(b"k") + string(b"v" * 60_000) for _ in range(5))
    properties = len(filler)
    size = bytearray()
    while properties > 127:
        size.append(properties & 127 | 128)
        properties >>= 7
    size.append(properties)
    head = string(b"MQTT") + bytes((5, 0x02 | 0x04 | 0x80, 0, 60)) + b"\0"
    body = head + string(vin.encode()) + bytes(size) + filler + will + string(b"sdv-recorder")
    with site.vehicle(vin) as connection:
        connection.send(packet(0x10, body))
        assert connection.expect(CONNACK).reason == NOT_VALID


def test_bytes_that_are_not_mqtt_do_not_reach_the_broker(site: Site, vin: str) -> None:
    with site.vehicle(vin) as connection:
        connection.send(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(EOFError):
            connection.next()


def test_a_missing_or_foreign_certificate_is_refused(site: Site, tmp_path: Path) -> None:
    trusts = client_context(TlsFiles(str(site.secrets / CA)))
    stranger = Settings(home=tmp_path)
    certificates.create_missing(stranger)
    (tmp_path / "stranger.pem").write_bytes(certificates.issue(tmp_path, "nobody"))
    of_another_ca = client_context(TlsFiles(str(site.secrets / CA), str(tmp_path / "stranger.pem")))
    of_behind_the_door = client_context(TlsFiles(str(site.secrets / CA), str(site.secrets / OF_INNER.format(OPERATOR))))
    for context in (trusts, of_another_ca, of_behind_the_door):
        for port in (site.settings.mqtt_port, site.settings.mqtt_services_port):
            try:
                connection = RawConnection(port, tls=context)
            except OSError:
                continue
            assert refused(connection)


def test_plaintext_is_refused(site: Site, vin: str) -> None:
    for port in (site.settings.mqtt_port, site.settings.mqtt_services_port):
        with RawConnection(port) as connection:
            assert refused(connection)


def test_an_expired_certificate_is_refused(site: Site, vin: str) -> None:
    try:
        connection = RawConnection(site.settings.mqtt_port, tls=site.context(vin, days=-0.001))
    except OSError:
        return
    assert refused(connection)


def test_a_server_certificate_is_not_a_client_certificate(site: Site) -> None:
    own = client_context(TlsFiles(str(site.secrets / CA), str(site.secrets / SERVER)))
    try:
        connection = RawConnection(site.settings.mqtt_services_port, tls=own)
    except OSError:
        return
    assert refused(connection)


def test_a_publisher_publishes_under_its_own_name(site: Site) -> None:
    with site.platform("sdv-pub-cloud") as connection:
        assert connection.open("sdv-pub-cloud-1", username="sdv-pub-cloud").reason == 0
        connection.send(publish(TRIGGER, b"{}"))
        assert connection.expect(PUBACK).reason in (0, 16)


@pytest.mark.parametrize(
    ("client_id", "username"),
    [
        ("sdv-dispatcher-0", "sdv-pub-cloud"),  # would disconnect the dispatcher and receive its events
        ("sdv-pub-cloud-1", "sdv-dispatcher"),
        ("sdv-pub-cloud-1", None),
        ("sdv-pub-cloudy", "sdv-pub-cloud"),
        ("1M8GDM9AXKP042788", "sdv-pub-cloud"),  # would take over a vehicle's session
    ],
)
def test_a_publisher_has_no_other_name(site: Site, client_id: str, username: str | None) -> None:
    with site.platform("sdv-pub-cloud") as connection:
        assert connection.open(client_id, username=username).reason == NOT_VALID


def test_vehicle_and_platform_certificates_are_not_interchangeable(site: Site, vin: str) -> None:
    with site.platform(vin) as connection:
        assert connection.open(vin, username=vin).reason == NOT_VALID
    with site.vehicle("sdv-recorder") as connection:
        assert connection.open("sdv-recorder", username="sdv-recorder").reason == NOT_VALID


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_tls_versions_are_refused(site: Site, vin: str) -> None:
    context = site.context(vin)
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(OSError):
        RawConnection(site.settings.mqtt_port, tls=context)


def test_a_revoked_client_is_disconnected_for_good(site: Site, vin: str) -> None:
    with site.vehicle(vin) as bad, site.vehicle(f"{vin}-good") as good:
        assert bad.open(vin).reason == 0
        assert good.open(f"{vin}-good").reason == 0
        certificates.revoke(site.settings.home, [certificates.serial_of((site.secrets / f"issued-{vin}.pem").read_bytes())])
        with pytest.raises((EOFError, ConnectionError)):
            bad.next()
        file = site.secrets / f"issued-{vin}.pem"
        with RawConnection(site.settings.mqtt_port, tls=client_context(TlsFiles(str(site.secrets / CA), str(file)))) as again:
            assert again.open(vin).reason == NOT_VALID
        assert good.listen(request_filter("agent", f"{vin}-good")).body[-1] == 1


def test_the_command_issues_lists_and_revokes(site: Site, vin: str) -> None:
    cert_registry = ask(site.settings, "certificates", "issue", vin, "--days", "1")
    file = Path(cert_registry["file"])
    assert file.stat().st_mode & 0o077 == 0
    with RawConnection(site.settings.mqtt_port, tls=client_context(TlsFiles(str(site.secrets / CA), str(file)))) as connection:
        assert connection.open(vin).reason == 0
        listed = ask(site.settings, "certificates", "list")
        assert [(row["serial"], row["revoked"]) for row in listed if row["name"] == vin] == [(cert_registry["serial"], False)]
        assert ask(site.settings, "certificates", "revoke", vin)["serials"] == [cert_registry["serial"]]
        with pytest.raises((EOFError, ConnectionError)):
            connection.next()
    assert [row["revoked"] for row in ask(site.settings, "certificates", "list") if row["name"] == vin] == [True]
    nobody = manifold("certificates", "revoke", "nobody", env=environment(site.settings))
    assert nobody.returncode == 1
    assert "no certificate with the common name nobody" in nobody.stderr


def test_a_connection_ends_with_its_certificate(site: Site, vin: str) -> None:
    with RawConnection(site.settings.mqtt_port, tls=site.context(vin, days=4 / 86400)) as connection:
        assert connection.open(vin).reason == 0
        with pytest.raises((EOFError, ConnectionError)):
            connection.next()


def test_the_tap_certificate_is_renewed_at_run_time(site: Site, vin: str) -> None:
    def shown() -> str:
        with site.vehicle(vin) as connection:
            assert isinstance(connection.socket, ssl.SSLSocket)
            return str((connection.socket.getpeercert() or {})["serialNumber"])

    with site.vehicle(f"{vin}-stays") as stays:
        assert stays.open(f"{vin}-stays").reason == 0
        before = shown()
        assert SERVER in certificates.renew(site.settings, within_days=certificates.LEAF_DAYS + 1)
        wait_until(lambda: shown() != before, within_s=30, what="the new certificate")
        assert stays.listen(request_filter("agent", f"{vin}-stays")).body[-1] == 1


def test_a_ca_is_rotated_at_run_time(site: Site, vin: str, tmp_path: Path) -> None:
    """Clients with the ca.pem of the announcement trust the tap then; the old CA's vehicles work until they expire."""
    home = site.settings.home
    for name in ("ca.pem", "ca-key.pem"):
        shutil.copy(site.secrets / name, tmp_path)  # from the announcement, with a stolen key
    olds, stolen = site.context(vin, days=40, now=LATELY), site.context(f"{vin}-x", days=40, now=LATELY)
    with RawConnection(site.settings.mqtt_port, tls=olds) as stays:
        assert stays.open(vin).reason == 0
        before = issuer(site, vin, site.context(vin))
        assert certificates.maintain(site.settings, now=TODAY)[:2] == ["ca.pem: succeed", "inner-ca.pem: succeed"]
        news = site.context(f"{vin}-new", days=90)
        news.load_verify_locations(tmp_path / "ca.pem")
        wait_until(lambda: issuer(site, vin, olds) != before, within_s=30, what="the tap to present a certificate of the new CA")
        for name, context in ((f"{vin}-new", news), (f"{vin}-x", stolen)):
            with RawConnection(site.settings.mqtt_port, tls=context) as connection:
                assert connection.open(name).reason == 0
        assert stays.listen(request_filter("agent", vin)).body[-1] == 1, "no client was disconnected"
    of_old = [row.serial for row in cert_registry.unexpired(home) if row.issuer == FRONT_DOOR.name]
    certificates.revoke(home, of_old[:-1])
    assert certificates.maintain(site.settings) == [], "one certificate of the old CA is still valid"
    certificates.revoke(home, of_old)
    assert certificates.maintain(site.settings) == ["ca.pem: drop"]
    wait_until(lambda: not let_in(site, olds, vin), within_s=30, what="the old CA to be distrusted")
    with RawConnection(site.settings.mqtt_port, tls=news) as connection:
        assert connection.open(f"{vin}-new").reason == 0
    shutil.copy(site.secrets / CA, tmp_path / "now.pem")
    forged = forge(tmp_path, f"{vin}-forged")
    wait_until(lambda: not let_in(site, forged, f"{vin}-forged"), within_s=30, what="the stolen key to be useless")


def issuer(site: Site, name: str, context: ssl.SSLContext) -> str:
    """The issuer of the tap's certificate."""
    with RawConnection(site.settings.mqtt_port, tls=context) as connection:
        assert isinstance(connection.socket, ssl.SSLSocket)
        return str((connection.socket.getpeercert() or {})["issuer"])


def let_in(site: Site, context: ssl.SSLContext, name: str) -> bool:
    try:
        with RawConnection(site.settings.mqtt_port, tls=context) as connection:
            return connection.open(name).reason == 0
    except (EOFError, OSError):
        return False


def forge(folder: Path, name: str) -> ssl.SSLContext:
    """A certificate signed with the stolen key of a retired CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    file = folder / "forged.pem"
    file.write_bytes(certificate(name, key.public_key(), folder, 1, FRONT_DOOR) + pem_of(key))
    return client_context(TlsFiles(str(folder / "now.pem"), str(file)))


def test_invalid_files_change_nothing(site: Site, vin: str) -> None:
    whole = (site.secrets / REVOKED).read_bytes()
    try:
        (site.secrets / REVOKED).write_bytes(b"half of it")
        wait_until(lambda: "certificates cannot be read" in site.tap.log.read_text(), within_s=30)
        with site.vehicle(vin) as connection:
            assert connection.open(vin).reason == 0
    finally:
        (site.secrets / REVOKED).write_bytes(whole)


def test_no_connection_bypasses_the_tap(site: Site) -> None:
    from tests.support.servers import listens

    assert not listens(site.settings.broker_port)


def test_a_crl_signed_by_another_ca_is_ignored(tmp_path: Path, site: Site) -> None:
    other = Settings(home=tmp_path)
    certificates.create_missing(other)
    with pytest.raises(ValueError, match="not signed"):
        revoked_serials(site.secrets / CA, tmp_path / SECRETS / REVOKED)


def test_keys_are_readable_only_by_their_owner(site: Site) -> None:
    made = [path for path in site.secrets.iterdir() if not path.name.startswith("issued-")]
    assert len(made) >= 6
    assert all(path.stat().st_mode & 0o077 == 0 and path.stat().st_uid == os.getuid() for path in [site.secrets, *made])


def test_a_certificate_with_two_names_or_none_has_no_owner() -> None:
    shown = {"notAfter": "Jan  1 00:00:00 2099 GMT", "serialNumber": "0A"}
    two = Identity.of(shown | {"subject": ((("commonName", "a"),), (("commonName", "b"),))})
    none = Identity.of(shown | {"subject": ((("organizationName", "a"),),)})
    assert (two.name, none.name, none.serial) == ("", "", 10)
    assert not is_vehicle(none, Connect("", 5, True, 60))
    assert not is_platform(none, Connect("", 5, True, 60, ""))
