"""Server certificates on loopback and their CAs."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

ONE_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Identity:
    """A certificate of 127.0.0.1, its key, and its CA."""

    authority: x509.Certificate
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def write(self, certificate: Path, key: Path) -> None:
        """Write certificate and key for a server."""
        certificate.write_bytes(self.certificate.public_bytes(Encoding.PEM))
        key.touch(mode=0o600)
        key.write_bytes(self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))

    def write_authority(self, file: Path) -> Path:
        """Write the CA for a client; return the file."""
        file.write_bytes(self.authority.public_bytes(Encoding.PEM))
        return file


def new_identity(name: str) -> Identity:
    """An identity issued by a CA of this name."""
    key, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    authority = _certificate(issuer, issuer, key, key, x509.BasicConstraints(ca=True, path_length=None))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    return Identity(authority, _certificate(subject, issuer, own, key, address), own)


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signed_by: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        issuer, subject, key.public_key(), x509.random_serial_number(), now - ONE_DAY, now + ONE_DAY
    )
    return builder.add_extension(extension, critical=True).sign(signed_by, hashes.SHA256())
