"""CA rotation while the platform runs: a new CA is announced, then signs, and the old one is dropped when unneeded.

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
from manifold.sandbox.platform.authority import Authority, believed, ca_certificate, new_key_pem, private_key, signer

CA_DAYS = 365.0
ANNOUNCED_DAYS = 60.0  # announcement period: twice a leaf's lifetime, and each new leaf comes with the current ca.pem
OVERLAP_DAYS = 60.0  # left of the old CA when it stops signing: twice a leaf's lifetime, so that its 30-day leaves expire first
NO_ANNOUNCEMENT_DAYS = 10.0  # with less left, skip the announcement period: leaves would expire right after renewal


class Step(StrEnum):
    """The next step of a rotation."""

    ANNOUNCE = "announce"
    SUCCEED = "succeed"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class RotationState:
    """The rotation state of one authority. Times are in UTC."""

    ends_at: datetime  # expiry of the signing CA
    announced_at: datetime | None = None  # of the successor; None: there is none
    former: Sequence[tuple[str, datetime]] = ()  # names and expiries of predecessors


def next_step(state: RotationState, needed: Collection[str], now: datetime) -> Step | None:
    """Return the step that is due. `needed` contains the names of CAs that signed certificates still in use."""
    left = state.ends_at - now
    if state.announced_at is None:
        if left <= timedelta(days=ANNOUNCED_DAYS + OVERLAP_DAYS):
            return Step.ANNOUNCE
    elif left <= timedelta(days=NO_ANNOUNCEMENT_DAYS) or (
        left <= timedelta(days=OVERLAP_DAYS) and now - state.announced_at >= timedelta(days=ANNOUNCED_DAYS)
    ):
        return Step.SUCCEED
    return Step.DROP if any(_is_over(one, needed, now) for one in state.former) else None


def standing(folder: Path, ca: Authority) -> RotationState:
    """Read the rotation state from the files.

    Raises:
        Permanent: there is no such CA.
    """
    signs, coming = signer(folder, ca), successor(folder, ca)
    former = [(name_of(each), each.not_valid_after_utc) for each in believed(folder, ca) if each not in (signs, coming)]
    return RotationState(signs.not_valid_after_utc, coming.not_valid_before_utc if coming else None, former)


def successor(folder: Path, ca: Authority) -> x509.Certificate | None:
    """Return the announced CA, if there is one."""
    try:
        key = private_key(folder / ca.next_key).public_key()
    except FileNotFoundError:
        return None
    return next((each for each in believed(folder, ca) if each.public_key() == key), None)


def announce(home: Path, ca: Authority, now: datetime) -> None:
    """Create a successor and add it to the trusted CAs."""
    folder = secret_files.folder(home)
    secret_files.get_or_create(home, ca.next_key, new_key_pem)
    name = f"{ca.name}, {now:%Y-%m-%d}"
    made = ca_certificate(name, private_key(folder / ca.next_key), CA_DAYS, now=now)
    secret_files.write(folder / ca.certificate, (folder / ca.certificate).read_bytes() + made)


def succeed(folder: Path, ca: Authority) -> None:
    """Make the successor the signing CA; this removes its predecessor's key."""
    (folder / ca.next_key).replace(folder / ca.key)


def drop(folder: Path, ca: Authority, needed: Collection[str], now: datetime) -> None:
    """Stop trusting predecessors that nobody needs."""
    own = (signer(folder, ca), successor(folder, ca))
    kept = [
        each
        for each in believed(folder, ca)
        if each in own or not _is_over((name_of(each), each.not_valid_after_utc), needed, now)
    ]
    secret_files.write(folder / ca.certificate, b"".join(each.public_bytes(Encoding.PEM) for each in kept))


def name_of(certificate: x509.Certificate) -> str:
    """Return the common name."""
    return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def _is_over(former: tuple[str, datetime], needed: Collection[str], now: datetime) -> bool:
    name, ends_at = former
    return ends_at <= now or name not in needed
