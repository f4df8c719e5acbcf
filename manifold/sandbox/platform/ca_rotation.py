"""CA rotation while the platform runs: a new CA is announced, then it signs, and the old CA is dropped when nothing needs it.

An announced CA is trusted but does not sign yet: every process that trusts `ca.pem` reloads the file before it sees the first
certificate of the new CA. After that the old CA is only trusted: its key is removed, and its certificates stay valid until they
expire.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from manifold.runtime import secret_files
from manifold.sandbox.platform.authority import Authority, ca_certificate, new_key_pem, private_key, signer, trusted_certificates

CA_DAYS = 365.0
# Minimum time from announcement to signing. It is twice the lifetime of a certificate, so that every client has received a
# ca.pem with the new CA along with a renewed certificate.
ANNOUNCED_DAYS = 60.0
OVERLAP_DAYS = 60.0  # remaining lifetime of a CA when it stops signing; its last certificates, of 30 days, expire before it
NO_ANNOUNCEMENT_DAYS = 10.0  # with this much left, the successor signs at once: certificates expire with their CA at the latest


class Step(StrEnum):
    """The next step of a rotation."""

    ANNOUNCE = "announce"
    SUCCEED = "succeed"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class RotationState:
    """The rotation state of one authority. Times are in UTC."""

    ends_at: datetime  # expiry of the signing CA
    announced_at: datetime | None = None  # when a successor was announced; None: there is no successor
    former: Sequence[tuple[str, datetime]] = ()  # name and expiry of each predecessor that is still trusted


def next_step(state: RotationState, needed: Collection[str], now: datetime) -> Step | None:
    """Return the step that is due; None if none is. `needed` has the names of the CAs whose certificates are still in use.

    A predecessor is dropped only while the signing CA needs no step.
    """
    remaining = state.ends_at - now
    if state.announced_at is None:
        if remaining <= timedelta(days=ANNOUNCED_DAYS + OVERLAP_DAYS):
            return Step.ANNOUNCE
    else:
        was_announced_long_enough = now - state.announced_at >= timedelta(days=ANNOUNCED_DAYS)
        if remaining <= timedelta(days=OVERLAP_DAYS) and was_announced_long_enough:
            return Step.SUCCEED
        # A late rotation must not wait longer: no certificate is valid longer than the CA that signs it.
        if remaining <= timedelta(days=NO_ANNOUNCEMENT_DAYS):
            return Step.SUCCEED
    if any(_is_unneeded(name, ends_at, needed, now) for name, ends_at in state.former):
        return Step.DROP
    return None


def read_state(folder: Path, ca: Authority) -> RotationState:
    """Read the rotation state from the files.

    Raises:
        Permanent: there is no such CA.
    """
    signing_ca = signer(folder, ca)
    next_ca = successor(folder, ca)
    former = [
        (name_of(certificate), certificate.not_valid_after_utc)
        for certificate in trusted_certificates(folder, ca)
        if certificate not in (signing_ca, next_ca)
    ]
    announced_at = next_ca.not_valid_before_utc if next_ca else None  # `announce` creates that certificate
    return RotationState(signing_ca.not_valid_after_utc, announced_at, former)


def successor(folder: Path, ca: Authority) -> x509.Certificate | None:
    """Return the announced CA; None if there is none, or if `announce` was killed after it wrote the key."""
    try:
        public_key = private_key(folder / ca.next_key).public_key()
    except FileNotFoundError:
        return None
    for certificate in trusted_certificates(folder, ca):
        if certificate.public_key() == public_key:
            return certificate
    return None


def announce(home: Path, ca: Authority, now: datetime) -> None:
    """Create a successor and add it to the trusted CAs."""
    folder = secret_files.folder(home)
    secret_files.get_or_create(home, ca.next_key, new_key_pem)
    name = f"{ca.name}, {now:%Y-%m-%d}"
    new_certificate = ca_certificate(name, private_key(folder / ca.next_key), CA_DAYS, now=now)
    file = folder / ca.certificate
    secret_files.write(file, file.read_bytes() + new_certificate)


def succeed(folder: Path, ca: Authority) -> None:
    """Make the successor the signing CA. This overwrites the predecessor's key."""
    (folder / ca.next_key).replace(folder / ca.key)


def drop(folder: Path, ca: Authority, needed: Collection[str], now: datetime) -> None:
    """Stop trusting the predecessors that have expired, or whose names are not in `needed` (as in `next_step`)."""
    current = (signer(folder, ca), successor(folder, ca))
    kept = [
        certificate
        for certificate in trusted_certificates(folder, ca)
        if certificate in current or not _is_unneeded(name_of(certificate), certificate.not_valid_after_utc, needed, now)
    ]
    secret_files.write(folder / ca.certificate, b"".join(certificate.public_bytes(Encoding.PEM) for certificate in kept))


def name_of(certificate: x509.Certificate) -> str:
    """Return the certificate's common name."""
    return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def _is_unneeded(name: str, ends_at: datetime, needed: Collection[str], now: datetime) -> bool:
    return ends_at <= now or name not in needed
