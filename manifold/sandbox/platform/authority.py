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

REVOCATION_LIST_DAYS = 7  # validity of a signed revocation list
_CLOCK_SKEW = timedelta(minutes=5)  # certificates are valid from this long before they are signed


@dataclass(frozen=True, slots=True)
class Authority:
    """A CA: the file names of its certificates, its key and its successor's key, and its name.

    The name of a successor is the CA's name, followed by a date.
    """

    certificate: str
    key: str
    next_key: str
    name: str

    def is_issuer(self, name: str) -> bool:
        """Whether this is the name of the CA or one of its successors."""
        prefix = f"{self.name}, "
        is_successor = name.startswith(prefix) and name.removeprefix(prefix)[:1].isdigit()
        return name == self.name or is_successor


# FRONT_DOOR signs the certificates of servers and MQTT clients, INNER those of the clients of Redis and RabbitMQ.
FRONT_DOOR = Authority(CA, "ca-key.pem", "ca-next-key.pem", "Manifold sandbox")
INNER = Authority(INNER_CA, "inner-ca-key.pem", "inner-ca-next-key.pem", "Manifold sandbox, behind the front door")


def trusted_certificates(folder: Path, ca: Authority) -> list[x509.Certificate]:
    """Return the trusted certificates of a CA: that of the signing CA, and those of its successor and predecessors."""
    return x509.load_pem_x509_certificates((folder / ca.certificate).read_bytes())


def signer(folder: Path, ca: Authority) -> x509.Certificate:
    """Return the certificate of the signing CA.

    Raises:
        Permanent: there is none.
    """
    certificate, _ = _signer_and_key(folder, ca)
    return certificate


def _signer_and_key(folder: Path, ca: Authority) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return the signing CA's certificate and key. Both are read here, since a rotation may happen between two separate calls.

    Raises:
        Permanent: there is no CA, or no certificate of its key.
    """
    key = ca_key(folder, ca)
    for certificate in trusted_certificates(folder, ca):
        if certificate.public_key() == key.public_key():
            return certificate, key
    raise Permanent(f"{folder / ca.certificate} has no certificate of the key in {ca.key}: put the files of one CA there")


def ca_certificate(name: str, key: ec.EllipticCurvePrivateKey, days: float, *, now: datetime) -> bytes:
    """Return a self-signed CA certificate, in PEM."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    public_key = key.public_key()
    builder = _builder(
        subject=subject,
        issuer=subject,
        key=public_key,
        issuer_key=public_key,
        begins=now,
        ends=now + timedelta(days=days),
        is_ca=True,
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


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
    """Return a certificate for this key in PEM, signed by `ca`. It is a server's if there are `hosts`, else a client's.

    It is valid for `days` from `now` (None: the current time), but expires with the CA at the latest.

    Raises:
        Permanent: there is no such CA.
    """
    begins = now or datetime.now(UTC)
    signing_ca, signing_key = _signer_and_key(folder, ca)
    usage = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = _builder(
        subject=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
        issuer=signing_ca.subject,
        key=key,
        issuer_key=signing_key.public_key(),
        begins=begins,
        ends=min(begins + timedelta(days=days), signing_ca.not_valid_after_utc),
        is_ca=False,
    )
    builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    if hosts:
        alternative_names = x509.SubjectAlternativeName([_alternative_name(host) for host in hosts])
        builder = builder.add_extension(alternative_names, critical=False)
    return builder.sign(signing_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _builder(
    *,
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    begins: datetime,
    ends: datetime,
    is_ca: bool,
) -> x509.CertificateBuilder:
    """Return an unsigned certificate with the extensions that all of the sandbox's certificates have."""
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
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
        .add_extension(_key_usage(is_ca=is_ca), critical=True)
    )


def _key_usage(*, is_ca: bool) -> x509.KeyUsage:
    """Return the usage of a key: that of a CA signs certificates and revocation lists, any other signs TLS handshakes."""
    return x509.KeyUsage(
        digital_signature=not is_ca,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def revocation_list(folder: Path, revoked: Mapping[int, datetime], *, now: datetime) -> bytes:
    """Return the revocation list of the MQTT CA, in PEM. `revoked` has the revocation times by serial number.

    Raises:
        Permanent: there is no CA.
    """
    signing_ca, signing_key = _signer_and_key(folder, FRONT_DOOR)
    builder = x509.CertificateRevocationListBuilder().issuer_name(signing_ca.subject)
    builder = builder.last_update(now - _CLOCK_SKEW).next_update(now + timedelta(days=REVOCATION_LIST_DAYS))
    for serial, revoked_at in revoked.items():
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(revoked_at).build()
        builder = builder.add_revoked_certificate(entry)
    return builder.sign(signing_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


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
    """Return the key in a file of unencrypted PEM.

    Raises:
        OSError: the file cannot be read.
    """
    key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def new_key_pem() -> str:
    """Return a new key, in PEM."""
    return pem_of(ec.generate_private_key(ec.SECP256R1())).decode().strip()


def pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a key in unencrypted PEM."""
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
