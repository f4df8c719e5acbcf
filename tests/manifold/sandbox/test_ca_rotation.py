"""CAs, certificates and the CRL over years of a simulated clock, without servers or waiting."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from manifold.contracts.errors import Permanent
from manifold.contracts.tls import CA, REVOKED, SECRETS, SERVER
from manifold.runtime.tls import revoked_serials
from manifold.sandbox.platform import cert_registry, certificates, revocations
from manifold.sandbox.platform.authority import FRONT_DOOR, signer, trusted_certificates
from manifold.sandbox.platform.ca_rotation import RotationState, Step, next_step
from manifold.settings import Settings

BEGAN = datetime(2027, 1, 1, tzinfo=UTC)


def day(number: float) -> datetime:
    return BEGAN + timedelta(days=number)


OLD = ("old", day(500))


@pytest.mark.parametrize(
    ("left", "announced", "former", "needed", "step"),
    [
        (121, None, [], [], None),
        (120, None, [], [], Step.ANNOUNCE),
        (-1, None, [], [], Step.ANNOUNCE),
        (61, 60, [], [], None),
        (60, 60, [], [], Step.SUCCEED),
        (60, 59, [], [], None),  # announced late: clients get the time that is left
        (11, 1, [], [], None),
        (10, 0, [], [], Step.SUCCEED),
        (-1, 0, [], [], Step.SUCCEED),
        (300, None, [OLD], ["old"], None),
        (300, None, [OLD], [], Step.DROP),
        (300, None, [("old", day(0))], ["old"], Step.DROP),
    ],
)
def test_due_renewals_are_listed(
    left: float, announced: float | None, former: list[tuple[str, datetime]], needed: list[str], step: Step | None
) -> None:
    since = None if announced is None else day(-announced)
    assert next_step(RotationState(day(left), since, former), needed, day(0)) is step


def test_certificates_stay_valid_over_years_of_occasional_checks(tmp_path: Path) -> None:
    """At any time, every presented certificate is valid and signed by a CA that was trusted long before it signed."""
    settings = Settings(home=tmp_path, tls=True)
    folder = tmp_path / SECRETS
    certificates.create_missing(settings, now=BEGAN)
    shown = x509.load_pem_x509_certificate(certificates.issue(tmp_path, "vehicle", days=30, now=BEGAN))
    trusted, signers, most = trusted_certificates(folder, FRONT_DOOR), set(), 0
    for number in range(0, 900, 4):
        now = day(number)
        certificates.maintain(settings, now=now)
        assert certificates.overdue(settings, now=now) == []
        if number % 28 == 0:  # a vehicle renews its certificate and its trusted CAs
            shown = x509.load_pem_x509_certificate(certificates.issue(tmp_path, "vehicle", days=33, now=now))
            trusted = trusted_certificates(folder, FRONT_DOOR)
        assert shown.not_valid_after_utc > now
        assert shown.issuer in [each.subject for each in trusted_certificates(folder, FRONT_DOOR)], "the tap trusts the vehicle"
        of_tap = x509.load_pem_x509_certificate((folder / SERVER).read_bytes())
        assert of_tap.not_valid_after_utc - now > timedelta(days=9)
        assert of_tap.issuer in [each.subject for each in trusted if each.not_valid_after_utc > now], "the vehicle trusts the tap"
        most = max(most, len(trusted_certificates(folder, FRONT_DOOR)))
        signers.add(signer(folder, FRONT_DOOR).subject)
        revoked_serials(folder / CA, folder / REVOKED)
    assert len(signers) == 4
    assert most == 2, "old entries are removed"


def test_a_home_left_alone_for_two_years_recovers(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, tls=True)
    certificates.create_missing(settings, now=BEGAN)
    late = day(730)
    assert len(certificates.overdue(settings, now=late)) == 2 + len(certificates.leaves(settings)) + 1
    certificates.create_missing(settings, now=late)
    assert certificates.overdue(settings, now=late) == []
    (only,) = trusted_certificates(tmp_path / SECRETS, FRONT_DOOR)
    assert only.not_valid_after_utc == late + timedelta(days=365)


def test_a_leaf_ends_with_its_ca(tmp_path: Path) -> None:
    certificates.create_missing(Settings(home=tmp_path, tls=True), now=BEGAN)
    made = x509.load_pem_x509_certificate(certificates.issue(tmp_path, "vehicle", days=300, now=day(200)))
    assert made.not_valid_after_utc == day(365)


def test_a_kill_between_key_and_certificate_is_recovered(tmp_path: Path) -> None:
    settings, folder = Settings(home=tmp_path, tls=True), tmp_path / SECRETS
    certificates.create_missing(settings, now=BEGAN)
    before = (folder / CA).read_bytes()
    certificates.maintain(settings, now=day(250))
    (folder / CA).write_bytes(before)  # the successor has only its key
    assert certificates.maintain(settings, now=day(251)) == ["ca.pem: announce"]
    assert len(trusted_certificates(folder, FRONT_DOOR)) == 2
    (folder / "ca-key.pem").unlink()
    with pytest.raises(Permanent, match="there is no CA"):
        certificates.maintain(settings, now=day(252))


def test_the_crl_is_renewed_in_time_and_drops_expired_certificates(tmp_path: Path) -> None:
    settings, folder = Settings(home=tmp_path, tls=True), tmp_path / SECRETS
    certificates.create_missing(settings, now=BEGAN)
    short, long = (certificates.serial_of(certificates.issue(tmp_path, "v", days=days, now=BEGAN)) for days in (2, 20))
    stranger = 7  # not in the registry: it stays
    certificates.revoke(tmp_path, [short, long, stranger], now=BEGAN)
    assert certificates.maintain(settings, now=day(1)) == []
    assert certificates.maintain(settings, now=day(3)) == [REVOKED]
    assert revoked_serials(folder / CA, folder / REVOKED) == {long, stranger}
    assert certificates.overdue(settings, now=day(6)) == []
    assert certificates.overdue(settings, now=day(9)) == ["revoked.pem was to be signed anew"]
    assert certificates.maintain(settings, now=day(9)) == [REVOKED]
    assert revocations.times_by_serial(tmp_path)[long] == BEGAN, "the revocation time"
    certificates.maintain(settings, now=day(25))
    assert revoked_serials(folder / CA, folder / REVOKED) == {stranger}
    assert [row.name for row in cert_registry.unexpired(tmp_path, now=day(3)) if row.name == "v"] == ["v"]
