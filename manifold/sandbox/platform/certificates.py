"""The sandbox's two CAs, and the certificates that they sign.

One CA signs the certificates of servers, and of all MQTT clients: services, publishers and vehicles. The other CA signs those of
the clients of Redis and RabbitMQ. These two servers trust no other CA, so that a certificate for MQTT gives no access to them.
The keys are in the home's secrets folder, readable by this user only. This suits a local machine only: a deployment's CA key must
not be on the platform's hosts.
"""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from manifold.contracts.errors import Permanent
from manifold.contracts.tls import OF_INNER, REVOKED, SERVER, Service
from manifold.runtime import secret_files
from manifold.runtime.secret_files import write
from manifold.sandbox.platform import ca_rotation, cert_registry, revocations
from manifold.sandbox.platform.authority import (
    FRONT_DOOR,
    INNER,
    REVOCATION_LIST_DAYS,
    Authority,
    ca_certificate,
    ca_key,
    certificate,
    new_key_pem,
    pem_of,
    signer,
)
from manifold.sandbox.platform.ca_rotation import CA_DAYS, Step
from manifold.settings import Settings

LEAF_DAYS = 30.0  # lifetime of a certificate that is not a CA's
RENEWAL_DAYS = LEAF_DAYS / 3  # remaining lifetime at which a certificate is renewed


def create_missing(settings: Settings, *, now: datetime | None = None) -> None:
    """Create missing CAs, then call `maintain`, which creates missing certificates and a missing revocation list."""
    folder, today = secret_files.folder(settings.home), now or datetime.now(UTC)
    for ca in (FRONT_DOOR, INNER):
        secret_files.get_or_create(settings.home, ca.key, new_key_pem)
        if not (folder / ca.certificate).exists():
            write(folder / ca.certificate, ca_certificate(ca.name, ca_key(folder, ca), CA_DAYS, now=today))
    maintain(settings, now=today)


def maintain(settings: Settings, *, now: datetime | None = None) -> list[str]:
    """Do what is due: rotate CAs, and renew the certificates of tap and services and the revocation list.

    Call it periodically; no service needs a restart. If anything was done, call `redis_certificates.reload` afterwards.

    Returns:
        Descriptions of what was done, mostly names of files.

    Raises:
        Permanent: there is no CA.
    """
    home, today = settings.home, now or datetime.now(UTC)
    done = []
    with _locked(home):
        for ca in (FRONT_DOOR, INNER):
            while step := _rotate(home, ca, today):
                done.append(f"{ca.certificate}: {step}")
        done += renew(settings, now=today)
        if revocations.renew(home, today):
            done.append(REVOKED)
    cert_registry.forget_expired(home, now=today)
    secret_files.remove_stale_drafts(home)
    return done


def _rotate(home: Path, ca: Authority, now: datetime) -> Step | None:
    """Perform the rotation step of this CA that is due, and return it; None if nothing is due."""
    folder = secret_files.folder(home)
    revoked_serials = revoked(home)
    needed = {issued.issuer for issued in cert_registry.unexpired(home, now=now) if issued.serial not in revoked_serials}
    step = ca_rotation.next_step(ca_rotation.read_state(folder, ca), needed, now)
    match step:
        case Step.ANNOUNCE:
            ca_rotation.announce(home, ca, now)
        case Step.SUCCEED:
            ca_rotation.succeed(folder, ca)
        case Step.DROP:
            revocations.renew(home, now)  # signs the list again if the dropped CA has signed it
            ca_rotation.drop(folder, ca, needed, now)
    return step


def renew(settings: Settings, *, within_days: float = RENEWAL_DAYS, now: datetime | None = None) -> list[str]:
    """Issue new certificates for tap and services where one is missing, expires within `within_days`, or is of a former CA.

    Returns:
        The names of the files that were written.

    Raises:
        Permanent: there is no CA.
    """
    folder, today = secret_files.folder(settings.home), now or datetime.now(UTC)
    must_be_valid_until = today + timedelta(days=within_days)
    renewed = []
    for leaf in leaves(settings):
        file = folder / leaf.file
        if not file.exists() or not _is_valid_until(file, must_be_valid_until, issuer=signer(folder, leaf.ca).subject):
            write(file, issue(settings.home, leaf.name, hosts=leaf.hosts, ca=leaf.ca, now=today))
            renewed.append(leaf.file)
    return renewed


@dataclass(frozen=True, slots=True)
class Leaf:
    """A certificate used by the sandbox itself."""

    file: str  # in the secrets folder
    name: str  # common name
    ca: Authority
    hosts: Sequence[str] = ()  # server names; empty for a client


def leaves(settings: Settings) -> list[Leaf]:
    """Return the certificate of the servers (tap, Redis, RabbitMQ, API), and those of the clients of MQTT, Redis and RabbitMQ."""
    users = (
        settings.mqtt_username_recorder,
        settings.mqtt_username_dispatcher,
        settings.mqtt_username_publisher,
        settings.mqtt_username_campaigns,
        settings.mqtt_username_api,
    )
    services: tuple[Service, ...] = get_args(Service)
    return [
        Leaf(SERVER, SERVER.removesuffix(".pem"), FRONT_DOOR, hosts_of(settings)),
        *(Leaf(f"{user}.pem", user, FRONT_DOOR) for user in dict.fromkeys(users)),
        *(Leaf(OF_INNER.format(service), service, INNER) for service in services),
    ]


def overdue(settings: Settings, *, now: datetime | None = None) -> list[str]:
    """Return descriptions of the renewals that are overdue by a day or more, which means that the renewer does not run.

    Raises:
        Permanent: there is no CA.
        OSError: a file cannot be read.
    """
    home = settings.home
    yesterday = (now or datetime.now(UTC)) - timedelta(days=1)  # what was due by then is overdue
    folder = secret_files.folder(home)
    overdue_work = []
    for ca in (FRONT_DOOR, INNER):
        state = ca_rotation.read_state(folder, ca)
        all_former = {name for name, _ in state.former}  # all count as needed, so only those that have expired are to be dropped
        if step := ca_rotation.next_step(state, all_former, yesterday):
            overdue_work.append(f"{ca.certificate} ends {state.ends_at:%Y-%m-%d} ({step} is due)")
    for leaf in leaves(settings):
        ends_at = x509.load_pem_x509_certificate((folder / leaf.file).read_bytes()).not_valid_after_utc
        if ends_at - yesterday < timedelta(days=RENEWAL_DAYS):
            overdue_work.append(f"{leaf.file} ends {ends_at:%Y-%m-%d}")
    next_update = revocations.ends_at(home)
    if next_update is None or next_update - yesterday < timedelta(days=REVOCATION_LIST_DAYS / 2):
        overdue_work.append(f"{REVOKED} was to be signed anew")
    return overdue_work


def hosts_of(settings: Settings) -> Sequence[str]:
    """Return the host names and addresses of the tap."""
    return tuple(dict.fromkeys(("localhost", "127.0.0.1", "::1", settings.host)))


def issue(
    home: Path,
    name: str,
    *,
    days: float = LEAF_DAYS,
    hosts: Sequence[str] = (),
    ca: Authority = FRONT_DOOR,
    now: datetime | None = None,
) -> bytes:
    """Issue a certificate with this common name, and return it with its key, in PEM.

    It is a server's if there are `hosts`, else a client's. It expires after `days`, but with its CA at the latest. The
    certificate is recorded in `cert_registry`; the key is not stored.

    Raises:
        Permanent: there is no CA, or the name is not a valid common name.
    """
    folder = secret_files.folder(home)
    if not 0 < len(name) <= 64:
        raise Permanent(f"{name!r} has {len(name)} characters: a common name has 1 to 64")
    key = ec.generate_private_key(ec.SECP256R1())
    certificate_pem = certificate(name, key.public_key(), folder, days, ca, hosts=hosts, now=now)
    cert_registry.record(home, certificate_pem)
    return certificate_pem + pem_of(key)


def revoke(home: Path, serials: Sequence[int], *, now: datetime | None = None) -> None:
    """Add certificates to the revocation list. The tap then disconnects their clients within a second or two.

    Certificates of the inner CA cannot be revoked, because Redis and RabbitMQ use no revocation list.

    Raises:
        Permanent: there is no CA.
    """
    today = now or datetime.now(UTC)
    with _locked(home):
        revoked_at = dict.fromkeys(serials, today) | revocations.times_by_serial(home)  # earlier revocations keep their times
        revocations.write(home, revoked_at, today)


def revoked(home: Path) -> frozenset[int]:
    """Return the serial numbers of all revoked certificates."""
    return frozenset(revocations.times_by_serial(home))


def serial_of(pem: bytes) -> int:
    """Return the serial number of the first certificate in `pem`."""
    return x509.load_pem_x509_certificate(pem).serial_number


def _is_valid_until(file: Path, limit: datetime, *, issuer: x509.Name) -> bool:
    """Whether the file has a certificate of this issuer that expires at `limit` or later."""
    try:
        leaf = x509.load_pem_x509_certificate(file.read_bytes())
    except ValueError:  # a partial file
        return False
    return leaf.not_valid_after_utc >= limit and leaf.issuer == issuer


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Lock CAs and revocation list against other processes: the console revokes while the renewer renews."""
    folder = secret_files.folder(home)
    lock = os.open(folder / ".authority.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
