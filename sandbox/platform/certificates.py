"""A CA that the sandbox throws away with its home, and the certificates that it signs: for the tap, services, and vehicles.

Its key lies in the folder of secrets, for this user alone. Good for a machine of one's own, and for nothing else: an environment
has a CA whose key is not where its platform is.
"""

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from adapters import secret_files
from adapters.redis import connect
from contracts.errors import Permanent
from contracts.settings import Settings
from contracts.tls import CA, LOCAL_CLIENT, REVOKED, SERVER

CA_KEY = "ca-key.pem"
CA_DAYS, LEAF_DAYS = 365.0, 30.0
LISTED_DAYS = 7
_CLOCK_SKEW = timedelta(minutes=5)


def make_up(settings: Settings) -> None:
    """The CA and an empty list of what is revoked, where there are none; certificates that last, for the tap and each service."""
    folder = secret_files.folder(settings.home)
    secret_files.made_up(settings.home, CA_KEY, _new_key_pem)
    if not (folder / CA).exists():
        _write(folder / CA, _certificate("Manifold sandbox", _ca_key(folder).public_key(), folder, CA_DAYS, is_ca=True))
    if not (folder / REVOKED).exists():
        _write(folder / REVOKED, _list(folder, ()))
    renew(settings)


def renew(settings: Settings, *, within_days: float = LEAF_DAYS / 3) -> list[str]:
    """New certificates for those of tap and services that end within so many days; their names. Nothing has to be started again.

    Raises:
        Permanent: there is no CA.
    """
    folder = secret_files.folder(settings.home)
    names: dict[str, Sequence[str]] = {SERVER.removesuffix(".pem"): hosts_of(settings)}
    users = settings.mqtt_username_recorder, settings.mqtt_username_dispatcher, settings.mqtt_username_publisher
    names |= dict.fromkeys((*users, LOCAL_CLIENT), ())
    soon = datetime.now(UTC) + timedelta(days=within_days)
    made = []
    for name, hosts in names.items():
        file = folder / f"{name}.pem"
        if not file.exists() or x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc < soon:
            _write(file, issue(settings.home, name, hosts=hosts))
            made.append(name)
    return made


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


def issue(home: Path, name: str, *, days: float = LEAF_DAYS, hosts: Sequence[str] = ()) -> bytes:
    """A certificate with this common name, and its key after it, in PEM; with `hosts` it is a server's, else a client's.

    Raises:
        Permanent: there is no CA, or the name is none that a certificate can have.
    """
    folder = secret_files.folder(home)
    if not 0 < len(name) <= 64:
        raise Permanent(f"{name!r} has {len(name)} characters: a common name has 1 to 64")
    key = ec.generate_private_key(ec.SECP256R1())
    return _certificate(name, key.public_key(), folder, days, hosts=hosts) + _pem_of(key)


def revoke(home: Path, serials: Sequence[int]) -> None:
    """Put certificates on the list of what is revoked: the tap cuts them off within a second or two.

    Raises:
        Permanent: there is no CA.
    """
    folder = secret_files.folder(home)
    listed = x509.load_pem_x509_crl((folder / REVOKED).read_bytes()) if (folder / REVOKED).exists() else ()
    _write(folder / REVOKED, _list(folder, [*(each.serial_number for each in listed), *serials]))


def serial_of(pem: bytes) -> int:
    """The serial number of the first certificate in `pem`."""
    return x509.load_pem_x509_certificate(pem).serial_number


def _certificate(
    name: str, key: ec.EllipticCurvePublicKey, folder: Path, days: float, *, hosts: Sequence[str] = (), is_ca: bool = False
) -> bytes:
    signer, now = _ca_key(folder), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer = subject if is_ca else x509.load_pem_x509_certificate((folder / CA).read_bytes()).subject
    usage = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(_key_usage(is_ca=is_ca), critical=True)
    )
    if not is_ca:
        made = made.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    if hosts:
        made = made.add_extension(x509.SubjectAlternativeName([_general(host) for host in hosts]), critical=False)
    return made.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _key_usage(*, is_ca: bool) -> x509.KeyUsage:
    none = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False)
    none |= {"encipher_only": False, "decipher_only": False}
    return x509.KeyUsage(digital_signature=not is_ca, key_cert_sign=is_ca, crl_sign=is_ca, **none)


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _list(folder: Path, serials: Sequence[int]) -> bytes:
    now = datetime.now(UTC)
    issuer = x509.load_pem_x509_certificate((folder / CA).read_bytes()).subject
    made = x509.CertificateRevocationListBuilder().issuer_name(issuer)
    made = made.last_update(now - _CLOCK_SKEW).next_update(now + timedelta(days=LISTED_DAYS))
    for serial in dict.fromkeys(serials):
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
        made = made.add_revoked_certificate(entry)
    return made.sign(_ca_key(folder), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _ca_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    try:
        found = serialization.load_pem_private_key((folder / CA_KEY).read_bytes(), None)
    except OSError as exc:
        raise Permanent(f"there is no CA in {folder} ({exc.strerror}): MANIFOLD_TLS=true make up makes one") from exc
    assert isinstance(found, ec.EllipticCurvePrivateKey)
    return found


def _new_key_pem() -> str:
    return _pem_of(ec.generate_private_key(ec.SECP256R1())).decode().strip()


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _write(file: Path, content: bytes) -> None:
    """Whole or not at all: somebody may be reading it."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        out.write(content)
    draft.replace(file)
