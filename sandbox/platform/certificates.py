"""Two CAs that the sandbox throws away with its home, and the certificates that they sign.

One is for servers and for all who come to the front door: services, publishers, vehicles. The other is for those who come to
Redis and RabbitMQ, which believe no other: a certificate of the front door opens nothing behind it. Their keys lie in the
folder of secrets, for this user alone. Good for a machine of one's own, and for nothing else: an environment has a CA whose key
is not where its platform is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from adapters import secret_files
from adapters.redis import connect
from adapters.secret_files import write
from contracts.errors import Permanent
from contracts.settings import Settings
from contracts.tls import OF_INNER, REVOKED, SERVER, Service
from sandbox.platform import issued
from sandbox.platform.authority import (
    FRONT_DOOR,
    INNER,
    Authority,
    ca_key,
    certificate,
    new_key_pem,
    pem_of,
    revocation_list,
    subject_of,
)

CA_DAYS, LEAF_DAYS = 365.0, 30.0


def make_up(settings: Settings) -> None:
    """The CAs and an empty list of what is revoked, where there are none; lasting certificates for the tap and each service."""
    folder = secret_files.folder(settings.home)
    for ca in (FRONT_DOOR, INNER):
        secret_files.made_up(settings.home, ca.key, new_key_pem)
        if not (folder / ca.certificate).exists():
            write(folder / ca.certificate, certificate(ca.name, ca_key(folder, ca).public_key(), folder, CA_DAYS, ca, is_ca=True))
    if not (folder / REVOKED).exists():
        write(folder / REVOKED, revocation_list(folder, ()))
    issued.forget_ended(settings.home)
    renew(settings)


def renew(settings: Settings, *, within_days: float = LEAF_DAYS / 3) -> list[str]:
    """New certificates for those of tap and services that end within so many days, or are another CA's; their files.

    Nothing has to be started again.

    Raises:
        Permanent: there is no CA.
    """
    folder = secret_files.folder(settings.home)
    soon = datetime.now(UTC) + timedelta(days=within_days)
    made = []
    for leaf in leaves(settings):
        file = folder / leaf.file
        if not file.exists() or not _lasts(file, soon, subject_of(folder, leaf.ca)):
            write(file, issue(settings.home, leaf.name, hosts=leaf.hosts, ca=leaf.ca))
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


def tell_redis(settings: Settings) -> None:
    """Have the Redis of the sandbox read its certificate again: it does so only when it is told.

    Raises:
        redis.RedisError: it does not answer.
    """
    server = str(secret_files.folder(settings.home) / SERVER)
    with connect(settings.redis) as redis:
        redis.execute_command("CONFIG", "SET", "tls-cert-file", server, "tls-key-file", server)


def hosts_of(settings: Settings) -> Sequence[str]:
    """The names and addresses under which the tap is reached."""
    return tuple(dict.fromkeys(("localhost", "127.0.0.1", "::1", settings.host)))


def issue(home: Path, name: str, *, days: float = LEAF_DAYS, hosts: Sequence[str] = (), ca: Authority = FRONT_DOOR) -> bytes:
    """A certificate with this common name, and its key after it, in PEM; with `hosts` it is a server's, else a client's.

    It is noted among `issued`; its key is kept nowhere.

    Raises:
        Permanent: there is no CA, or the name is none that a certificate can have.
    """
    folder = secret_files.folder(home)
    if not 0 < len(name) <= 64:
        raise Permanent(f"{name!r} has {len(name)} characters: a common name has 1 to 64")
    key = ec.generate_private_key(ec.SECP256R1())
    made = certificate(name, key.public_key(), folder, days, ca, hosts=hosts)
    issued.note(home, made)
    return made + pem_of(key)


def revoke(home: Path, serials: Sequence[int]) -> None:
    """Put certificates on the list of what is revoked: the tap cuts them off within a second or two.

    Those of the inner CA are on no list: Redis and RabbitMQ ask for none.

    Raises:
        Permanent: there is no CA.
    """
    folder = secret_files.folder(home)
    write(folder / REVOKED, revocation_list(folder, [*revoked(home), *serials]))


def revoked(home: Path) -> frozenset[int]:
    """The serial numbers of all that are revoked."""
    file = secret_files.folder(home) / REVOKED
    return frozenset(each.serial_number for each in x509.load_pem_x509_crl(file.read_bytes())) if file.exists() else frozenset()


def serial_of(pem: bytes) -> int:
    """The serial number of the first certificate in `pem`."""
    return x509.load_pem_x509_certificate(pem).serial_number


def _lasts(file: Path, until: datetime, issuer: x509.Name) -> bool:
    found = x509.load_pem_x509_certificate(file.read_bytes())
    return found.not_valid_after_utc >= until and found.issuer == issuer
