"""The CAs of the sandbox, and what they sign: certificates, and the list of those that are revoked."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from contracts.errors import Permanent
from contracts.tls import CA, INNER_CA

LISTED_DAYS = 7
_CLOCK_SKEW = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Authority:
    """A CA: the files with its certificate and its key, and its name."""

    certificate: str
    key: str
    name: str


FRONT_DOOR = Authority(CA, "ca-key.pem", "Manifold sandbox")
INNER = Authority(INNER_CA, "inner-ca-key.pem", "Manifold sandbox, behind the front door")


def subject_of(folder: Path, ca: Authority) -> x509.Name:
    """The name of a CA as certificates have it."""
    return x509.load_pem_x509_certificate((folder / ca.certificate).read_bytes()).subject


def certificate(
    name: str,
    key: ec.EllipticCurvePublicKey,
    folder: Path,
    days: float,
    ca: Authority,
    *,
    hosts: Sequence[str] = (),
    is_ca: bool = False,
) -> bytes:
    """A certificate for this key in PEM, signed by `ca`.

    Raises:
        Permanent: there is no such CA.
    """
    signer, now = ca_key(folder, ca), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer = subject if is_ca else subject_of(folder, ca)
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


def revocation_list(folder: Path, serials: Sequence[int]) -> bytes:
    """The list of what the CA of the front door has revoked, in PEM."""
    now = datetime.now(UTC)
    made = x509.CertificateRevocationListBuilder().issuer_name(subject_of(folder, FRONT_DOOR))
    made = made.last_update(now - _CLOCK_SKEW).next_update(now + timedelta(days=LISTED_DAYS))
    for serial in dict.fromkeys(serials):
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
        made = made.add_revoked_certificate(entry)
    return made.sign(ca_key(folder, FRONT_DOOR), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def ca_key(folder: Path, ca: Authority) -> ec.EllipticCurvePrivateKey:
    """The key of a CA.

    Raises:
        Permanent: there is none.
    """
    try:
        found = serialization.load_pem_private_key((folder / ca.key).read_bytes(), None)
    except OSError as exc:
        raise Permanent(f"there is no CA in {folder} ({exc.strerror}): MANIFOLD_TLS=true make up makes one") from exc
    assert isinstance(found, ec.EllipticCurvePrivateKey)
    return found


def new_key_pem() -> str:
    """A new key, in PEM."""
    return pem_of(ec.generate_private_key(ec.SECP256R1())).decode().strip()


def pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A key, in PEM, in the clear."""
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
