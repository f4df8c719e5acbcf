"""The two CAs of the sandbox, which are removed with its home, and the certificates that they sign.

One is for servers and for all clients of the MQTT port: services, publishers, vehicles. The other is for clients of Redis and
RabbitMQ, which trust no other CA, so that a certificate for MQTT gives no access behind it. Their keys are in the folder of
secrets, for this user alone. This suits a machine of one's own only: the key of an environment's CA must not be where its
platform is.
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
from manifold.runtime.redis import connect
from manifold.runtime.renewal import written_at
from manifold.runtime.secret_files import write
from manifold.sandbox.platform import ca_rotation, cert_registry, revocations
from manifold.sandbox.platform.authority import (
    FRONT_DOOR,
    INNER,
    LISTED_DAYS,
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

LEAF_DAYS = 30.0
RENEWED_DAYS = LEAF_DAYS / 3  # before its end
ANSWER_S = 5.0  # in which Redis answers


def make_up(settings: Settings, *, now: datetime | None = None) -> None:
    """Make the CAs and an empty revocation list if there are none; then do what `keep` does."""
    folder, today = secret_files.folder(settings.home), now or datetime.now(UTC)
    for ca in (FRONT_DOOR, INNER):
        secret_files.made_up(settings.home, ca.key, new_key_pem)
        if not (folder / ca.certificate).exists():
            write(folder / ca.certificate, ca_certificate(ca.name, ca_key(folder, ca), CA_DAYS, now=today))
    keep(settings, now=today)


def keep(settings: Settings, *, now: datetime | None = None) -> list[str]:
    """Do what is due by now: succession of CAs, certificates of tap and services, the revocation list.

    To be called now and then; nothing has to be started again. What was done, in words; Redis wants to be told of it.

    Raises:
        Permanent: there is no CA.
    """
    home, today = settings.home, now or datetime.now(UTC)
    done = []
    with _alone(home):
        for ca in (FRONT_DOOR, INNER):
            while step := _step(home, ca, today):
                done.append(f"{ca.certificate}: {step}")
        done += renew(settings, now=today)
        if revocations.keep(home, today):
            done.append(REVOKED)
    cert_registry.forget_ended(home, now=today)
    secret_files.sweep(home)
    return done


def _step(home: Path, ca: Authority, now: datetime) -> Step | None:
    """Do what is to be done next with this CA; None: nothing."""
    folder, revoked_now = secret_files.folder(home), revoked(home)
    needed = {row.issuer for row in cert_registry.of_home(home, now=now) if row.serial not in revoked_now}
    step = ca_rotation.next_step(ca_rotation.standing(folder, ca), needed, now)
    match step:
        case Step.ANNOUNCE:
            ca_rotation.announce(home, ca, now)
        case Step.SUCCEED:
            ca_rotation.succeed(folder, ca)
        case Step.DROP:
            revocations.keep(home, now)  # before nobody believes whoever has signed the one that there is
            ca_rotation.drop(folder, ca, needed, now)
    return step


def renew(settings: Settings, *, within_days: float = RENEWED_DAYS, now: datetime | None = None) -> list[str]:
    """New certificates for those of tap and services that end within so many days, or are another CA's; their files.

    Raises:
        Permanent: there is no CA.
    """
    folder, today = secret_files.folder(settings.home), now or datetime.now(UTC)
    made = []
    for leaf in leaves(settings):
        file = folder / leaf.file
        if not file.exists() or not _lasts(file, today + timedelta(days=within_days), signer(folder, leaf.ca).subject):
            write(file, issue(settings.home, leaf.name, hosts=leaf.hosts, ca=leaf.ca, now=today))
            made.append(leaf.file)
    return made


@dataclass(frozen=True, slots=True)
class Leaf:
    """A certificate that the sandbox itself shows."""

    file: str  # among the secrets
    name: str  # its common name
    ca: Authority
    hosts: Sequence[str] = ()  # of a server


def leaves(settings: Settings) -> list[Leaf]:
    """The server's, which tap, Redis, RabbitMQ and the API show; those of services at the front door; and behind it."""
    users = settings.mqtt_username_recorder, settings.mqtt_username_dispatcher, settings.mqtt_username_publisher
    services: tuple[Service, ...] = get_args(Service)
    return [
        Leaf(SERVER, SERVER.removesuffix(".pem"), FRONT_DOOR, hosts_of(settings)),
        *(Leaf(f"{user}.pem", user, FRONT_DOOR) for user in dict.fromkeys(users)),
        *(Leaf(OF_INNER.format(service), service, INNER) for service in services),
    ]


def of_redis(settings: Settings) -> tuple[int, ...]:
    """Which state of its files Redis should have: another one whenever one of them was written.

    Raises:
        OSError: one cannot be read.
    """
    return tuple(written_at(str(secret_files.folder(settings.home) / file)) for file in (SERVER, INNER.certificate))


def tell_redis(settings: Settings) -> None:
    """Have the Redis of the sandbox read its certificate and its CA again: it does so only when it is told.

    Raises:
        redis.RedisError: it does not answer.
    """
    folder = secret_files.folder(settings.home)
    server = str(folder / SERVER)
    files = ("tls-cert-file", server, "tls-key-file", server, "tls-ca-cert-file", str(folder / INNER.certificate))
    with connect(settings.redis, socket_connect_timeout=ANSWER_S, socket_timeout=ANSWER_S) as redis:
        redis.execute_command("CONFIG", "SET", *files)


def overdue(settings: Settings, *, now: datetime | None = None) -> list[str]:
    """What should have been done a day ago, in words: nobody keeps the certificates.

    Raises:
        Permanent: there is no CA.
        OSError: a file cannot be read.
    """
    home, yesterday = settings.home, (now or datetime.now(UTC)) - timedelta(days=1)
    folder = secret_files.folder(home)
    found = []
    for ca in (FRONT_DOOR, INNER):
        standing = ca_rotation.standing(folder, ca)
        if step := ca_rotation.next_step(standing, {name for name, _ in standing.former}, yesterday):
            found.append(f"{ca.certificate} ends {standing.ends_at:%Y-%m-%d} ({step} is due)")
    until = yesterday + timedelta(days=RENEWED_DAYS)
    for leaf in leaves(settings):
        ends_at = x509.load_pem_x509_certificate((folder / leaf.file).read_bytes()).not_valid_after_utc
        if ends_at < until:
            found.append(f"{leaf.file} ends {ends_at:%Y-%m-%d}")
    listed_until = revocations.ends_at(home)
    if listed_until is None or listed_until - yesterday < timedelta(days=LISTED_DAYS / 2):
        found.append(f"{REVOKED} was to be signed anew")
    return found


def hosts_of(settings: Settings) -> Sequence[str]:
    """The names and addresses under which the tap is reached."""
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
    """A certificate with this common name, and its key after it, in PEM; with `hosts` it is a server's, else a client's.

    It ends with its CA at the latest. It is noted among `issued`; its key is kept nowhere.

    Raises:
        Permanent: there is no CA, or the name is none that a certificate can have.
    """
    folder = secret_files.folder(home)
    if not 0 < len(name) <= 64:
        raise Permanent(f"{name!r} has {len(name)} characters: a common name has 1 to 64")
    key = ec.generate_private_key(ec.SECP256R1())
    made = certificate(name, key.public_key(), folder, days, ca, hosts=hosts, now=now)
    cert_registry.note(home, made)
    return made + pem_of(key)


def revoke(home: Path, serials: Sequence[int], *, now: datetime | None = None) -> None:
    """Put certificates on the list of what is revoked: the tap cuts them off within a second or two.

    Those of the inner CA are on no list: Redis and RabbitMQ ask for none.

    Raises:
        Permanent: there is no CA.
    """
    today = now or datetime.now(UTC)
    with _alone(home):
        revocations.write(home, dict.fromkeys(serials, today) | revocations.listed(home), today)


def revoked(home: Path) -> frozenset[int]:
    """The serial numbers of all that are revoked."""
    return frozenset(revocations.listed(home))


def serial_of(pem: bytes) -> int:
    """The serial number of the first certificate in `pem`."""
    return x509.load_pem_x509_certificate(pem).serial_number


def _lasts(file: Path, until: datetime, issuer: x509.Name) -> bool:
    try:
        found = x509.load_pem_x509_certificate(file.read_bytes())
    except ValueError:  # half a file
        return False
    return found.not_valid_after_utc >= until and found.issuer == issuer


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Nobody else changes CAs or the list meanwhile: the console revokes while the keeper renews."""
    folder = secret_files.folder(home)
    lock = os.open(folder / ".authority.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
