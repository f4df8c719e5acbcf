"""The revocation list of the MQTT CA, which is signed again before it expires, without certificates that have expired."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509

from manifold.contracts.tls import REVOKED
from manifold.runtime import secret_files
from manifold.sandbox.platform import cert_registry
from manifold.sandbox.platform.authority import FRONT_DOOR, REVOCATION_LIST_DAYS, revocation_list, signer


def times_by_serial(home: Path) -> dict[int, datetime]:
    """Return the revocation times (UTC) of all revoked certificates, by serial number."""
    current_list = _read(home)
    if current_list is None:
        return {}
    return {entry.serial_number: entry.revocation_date_utc for entry in current_list}


def write(home: Path, revoked: Mapping[int, datetime], now: datetime) -> None:
    """Sign and write a list with these revocation times by serial number.

    Raises:
        Permanent: there is no CA.
    """
    folder = secret_files.folder(home)
    secret_files.write(folder / REVOKED, revocation_list(folder, revoked, now=now))


def renew(home: Path, now: datetime) -> bool:
    """Sign the list if it is missing, half of its validity has passed, the CA has changed, or a listed certificate has expired.

    Expired certificates are removed from the list; those that are not in the registry stay. Returns whether a list was written.

    Raises:
        Permanent: there is no CA.
    """
    expired = {issued.serial for issued in cert_registry.all_of(home) if issued.ends_at <= now}
    current_list = _read(home)
    revoked = times_by_serial(home)
    kept = {serial: revoked_at for serial, revoked_at in revoked.items() if serial not in expired}
    if current_list is not None and len(kept) == len(revoked) and _is_current(home, current_list, now):
        return False
    write(home, kept, now)
    return True


def ends_at(home: Path) -> datetime | None:
    """Return the next update time of the list; None if there is no list."""
    current_list = _read(home)
    return None if current_list is None else current_list.next_update_utc


def _is_current(home: Path, current_list: x509.CertificateRevocationList, now: datetime) -> bool:
    """Whether the signing CA has signed the list, and at least half of its validity is left."""
    signing_ca = signer(secret_files.folder(home), FRONT_DOOR)
    next_update = current_list.next_update_utc
    if current_list.issuer != signing_ca.subject or next_update is None:
        return False
    return next_update - now >= timedelta(days=REVOCATION_LIST_DAYS / 2)


def _read(home: Path) -> x509.CertificateRevocationList | None:
    """Return the list; None if there is none."""
    try:
        return x509.load_pem_x509_crl((secret_files.folder(home) / REVOKED).read_bytes())
    except FileNotFoundError:
        return None
