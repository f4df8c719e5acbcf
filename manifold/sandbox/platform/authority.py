"""The CAs of the sandbox, which sign certificates and the revocation list."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from manifold.contracts.errors import Permanent
from manifold.contracts.tls import CA, INNER_CA

LISTED_DAYS = 7
_CLOCK_SKEW = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Authority:
    """A CA: file names of its certificates, key and successor's key, and its name; successors append a date."""

    certificate: str
    key: str
    next_key: str
    name: str

    def is_issuer(self, name: str) -> bool:
        """Whether this is the name of the CA or one of its successors."""
        return name == self.name or (name.startswith(f"{self.name}, ") and name.removeprefix(f"{self.name}, ")[:1].isdigit())


FRONT_DOOR = Authority(CA, "ca-key.pem", "ca-next-key.pem", "Manifold sandbox")
INNER = Authority(INNER_CA, "inner-ca-key.pem", "inner-ca-next-key.pem", "Manifold sandbox, behind the front door")


def believed(folder: Path, ca: Authority) -> list[x509.Certificate]:
    """Return the trusted certificates of a CA: the signing one, and its successor and predecessors, if there are any."""
    return x509.load_pem_x509_certificates((folder / ca.certificate).read_bytes())


def signer(folder: Path, ca: Authority) -> x509.Certificate:
    """Return the signing certificate of a CA.

    Raises:
        Permanent: there is none.
    """
    return _signer_and_key(folder, ca)[0]


def _signer_and_key(folder: Path, ca: Authority) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return a matching pair: a rotation may happen between two reads."""
    key = ca_key(folder, ca)
    found = next((each for each in believed(folder, ca) if each.public_key() == key.public_key()), None)
    if found is None:
        raise Permanent(f"{folder / ca.certificate} has no certificate of the key in {ca.key}: put the files of one CA there")
    return found, key


def ca_certificate(name: str, key: ec.EllipticCurvePrivateKey, days: float, *, now: datetime) -> bytes:
    """Return a self-signed CA certificate, in PEM."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    public = key.public_key()
    made = _builder(subject, subject, public, public, now, now + timedelta(days=days), is_ca=True)
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def certificate(
    name: str,
    key: ec.EllipticCurvePublicKey,
    folder: Path,
    days: float,
    ca: Authority,
    *,
    hosts: Sequence[str] = (),
    now: datetime | None = None,
) -> bytes:
    """Return a certificate for this key in PEM, signed by `ca`; it expires with the CA at the latest.

    Raises:
        Permanent: there is no such CA.
    """
    begins, (signs, own) = now or datetime.now(UTC), _signer_and_key(folder, ca)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    ends = min(begins + timedelta(days=days), signs.not_valid_after_utc)
    made = _builder(subject, signs.subject, key, own.public_key(), begins, ends, is_ca=False)
    made = made.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    if hosts:
        made = made.add_extension(x509.SubjectAlternativeName([_general(host) for host in hosts]), critical=False)
    return made.sign(own, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuers_key: ec.EllipticCurvePublicKey,
    begins: datetime,
    ends: datetime,
    *,
    is_ca: bool,
) -> x509.CertificateBuilder:
    """A certificate before it is signed, with the extensions that all of ours have."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins - _CLOCK_SKEW)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuers_key), critical=False)
        .add_extension(_key_usage(is_ca=is_ca), critical=True)
    )


def _key_usage(*, is_ca: bool) -> x509.KeyUsage:
    none = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False)
    none |= {"encipher_only": False, "decipher_only": False}
    return x509.KeyUsage(digital_signature=not is_ca, key_cert_sign=is_ca, crl_sign=is_ca, **none)


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def revocation_list(folder: Path, revoked: Mapping[int, datetime], *, now: datetime) -> bytes:
    """Return the revocation list of the front door's CA, with revocation times, in PEM."""
    signs, own = _signer_and_key(folder, FRONT_DOOR)
    made = x509.CertificateRevocationListBuilder().issuer_name(signs.subject)
    made = made.last_update(now - _CLOCK_SKEW).next_update(now + timedelta(days=LISTED_DAYS))
    for serial, since in revoked.items():
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(since).build()
        made = made.add_revoked_certificate(entry)
    return made.sign(own, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def ca_key(folder: Path, ca: Authority) -> ec.EllipticCurvePrivateKey:
    """Return the key of a CA.

    Raises:
        Permanent: there is none.
    """
    try:
        return private_key(folder / ca.key)
    except OSError as exc:
        raise Permanent(f"there is no CA in {folder} ({exc.strerror}): MANIFOLD_TLS=true make up makes one") from exc


def private_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """Return the key in a file.

    Raises:
        OSError: it cannot be read.
    """
    found = serialization.load_pem_private_key(file.read_bytes(), None)
    assert isinstance(found, ec.EllipticCurvePrivateKey)
    return found


def new_key_pem() -> str:
    """Return a new key, in PEM."""
    return pem_of(ec.generate_private_key(ec.SECP256R1())).decode().strip()


def pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a key in unencrypted PEM."""
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
