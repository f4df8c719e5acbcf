"""Lease of jobs that rewrite tables: compaction, garbage collection, erasure, restore, rollback, repair, migration.

At most one of these jobs works on the lake at a time. Ingest takes no lease and never waits for one.

The lease is stored in the metadata of `ingested_segments`. The tag `lease` exists while the lease is taken, the tag
`lease_<token>` identifies the holder, and a table property records the holder's name and the expiry. The lease consists of tags
because a commit can require that refs are unchanged, but cannot require this of table properties.

A holder's run is committed by moving main of `ingested_segments`. This commit requires the holder's tag, so a job that has lost
its lease cannot publish.

A holder renews its lease while it works. The lease of a killed holder expires after at most `LEASE_S` seconds.
"""

import json
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from manifold.contracts.errors import Retryable
from manifold.contracts.tables import SEGMENTS
from manifold.lake.compat import commit

LEASE_S = 45.0  # Airflow's two retries of a job take longer, so a retry finds the lease of a killed job expired
RENEW_S = 15.0  # interval between renewals
MAX_COMMIT_ATTEMPTS = 30
TAKEN = "lease"  # tag that exists while the lease is taken
HOLDER = "lease_"  # prefix of the tag that identifies the holder; the holder's token follows
TERMS = "manifold.lease"  # table property: the holder's name and the expiry, as JSON

Clock = Callable[[], datetime]
now_utc: Clock = partial(datetime.now, UTC)

log = structlog.get_logger(__name__)
_held: ContextVar["Lease | None"] = ContextVar("lease", default=None)


class LeaseHeld(Retryable):
    """Another job is rewriting tables. This job has changed nothing; try again after the other job has ended."""


class LeaseLost(Retryable):
    """The lease expired and another job took it. Since then, this job has published nothing; run it again."""


class Lease:
    """The lease as seen by one job, which may hold it or not."""

    def __init__(self, catalog: Catalog, job: str, clock: Clock = now_utc) -> None:
        self._catalog = catalog
        self._clock = clock
        self._tag = HOLDER + secrets.token_hex(8)
        self.job = f"{job} (process {os.getpid()} on {socket.gethostname()})"

    def take(self) -> None:
        """Take the lease if no job holds it, or if the holder's lease has expired.

        Raises:
            LeaseHeld: another job holds it; the message names the holder and the expiry.
        """

        def change(table: IcebergTable) -> tuple[list[TableRequirement], list[TableUpdate]]:
            if self._tag in table.refs():
                return [], []  # an earlier commit took the lease, and its reply was lost
            self._require_free(table)
            old_tags = [name for name in table.refs() if name.startswith(HOLDER)]
            # The commit fails if another job takes or releases the lease before it.
            requirements = [_unchanged_ref(table, name) for name in (TAKEN, *old_tags)]
            drops = [_ref_update(RemoveSnapshotRefUpdate, name) for name in old_tags]
            target = {"snapshot-id": table.metadata.current_snapshot_id}
            tags = [_ref_update(SetSnapshotRefUpdate, name, type="tag", **target) for name in (TAKEN, self._tag)]
            return requirements, [*drops, *tags, self._terms()]

        self._commit(change)

    def renew(self) -> None:
        """Extend the lease.

        Raises:
            LeaseLost: another job has taken the lease.
        """
        self._commit(lambda table: (list(self.fence(table)), [self._terms()]))

    def release(self) -> None:
        """Release the lease, so that other jobs can take it at once. If another job already has it, nothing changes."""

        def change(table: IcebergTable) -> tuple[list[TableRequirement], list[TableUpdate]]:
            if self._tag not in table.refs():
                return [], []  # another job has the lease, or an earlier commit released it, and its reply was lost
            updates: list[TableUpdate] = [
                _ref_update(RemoveSnapshotRefUpdate, name) for name in (TAKEN, self._tag) if name in table.refs()
            ]
            if TERMS in table.properties:
                updates.append(RemovePropertiesUpdate(removals=[TERMS]))
            return [_unchanged_ref(table, self._tag)], updates

        self._commit(change)

    def fence(self, segments: IcebergTable) -> tuple[TableRequirement, ...]:
        """The requirements that make a commit to `ingested_segments` fail if another job has taken the lease.

        Raises:
            LeaseLost: another job has taken the lease.
        """
        if self._tag not in segments.refs():
            raise LeaseLost(f"{self.job} did not renew its lease for {LEASE_S:.0f} s, and another job took it; do it again")
        return (_unchanged_ref(segments, self._tag),)

    def _require_free(self, table: IcebergTable) -> None:
        """Raise `LeaseHeld` if a job holds the lease and the lease has not expired."""
        try:
            terms = json.loads(table.properties.get(TERMS, "{}"))
            holder = str(terms["holder"])
            until = datetime.fromisoformat(terms["until"])
        except (ValueError, TypeError, KeyError):  # no job holds the lease, or the property is malformed: the lease is free
            return
        if TAKEN in table.refs() and self._clock() < until:
            raise LeaseHeld(
                f"{holder} holds the maintenance lease until {until:%Y-%m-%d %H:%M:%S} UTC and renews it while it works; "
                "try again when it has ended"
            )

    def _terms(self) -> TableUpdate:
        """The update that records this job as the holder, for `LEASE_S` from now."""
        terms = {"holder": self.job, "until": (self._clock() + timedelta(seconds=LEASE_S)).isoformat()}
        return SetPropertiesUpdate(updates={TERMS: json.dumps(terms)})

    def _commit(self, change: Callable[[IcebergTable], tuple[list[TableRequirement], list[TableUpdate]]]) -> None:
        """Commit the requirements and updates that `change` returns for the current table; do nothing without updates."""
        for _ in range(MAX_COMMIT_ATTEMPTS):
            table = self._catalog.load_table(SEGMENTS.identifier)
            requirements, updates = change(table)
            if not updates:
                return
            try:
                commit(table, (AssertTableUUID(uuid=table.metadata.table_uuid), *requirements), tuple(updates))
            except (CommitFailedException, CommitStateUnknownException):
                continue  # another process committed first, or the reply was lost: load the table again
            return
        raise Retryable(f"too many concurrent commits to {SEGMENTS.identifier}; try again")


@contextmanager
def rewriting(catalog: Catalog, job: str, *, clock: Clock = now_utc) -> Iterator[None]:
    """Hold the lease during the block, under the name `job`. If the lake has no tables, run the block without a lease.

    Raises:
        LeaseHeld: another job holds the lease.
    """
    if not catalog.table_exists(SEGMENTS.identifier):
        yield
        return
    lease = Lease(catalog, job, clock)
    lease.take()
    ended = threading.Event()
    renewing = threading.Thread(target=_renew, args=(lease, ended), name="lease", daemon=True)
    renewing.start()
    token = _held.set(lease)
    try:
        yield
    finally:
        _held.reset(token)
        ended.set()
        renewing.join()
        try:
            lease.release()
        except Exception as exc:  # noqa: BLE001  # the job has ended, and its lease expires by itself
            log.warning(
                "lease of a rewriting job not released; it expires automatically", job=job, after_s=LEASE_S, reason=str(exc)
            )


def fence(segments: IcebergTable) -> tuple[TableRequirement, ...]:
    """The requirements of the lease that this job holds; empty for a job without a lease, such as an ingest."""
    lease = _held.get()
    return lease.fence(segments) if lease is not None else ()


def check_lease(catalog: Catalog) -> None:
    """Check that this job still holds its lease. A job without a lease always passes.

    Call this before changes other than commits to `ingested_segments`: `fence` does not protect them.

    Raises:
        LeaseLost: another job has taken the lease.
    """
    if _held.get() is not None:
        fence(catalog.load_table(SEGMENTS.identifier))


def _renew(lease: Lease, ended: threading.Event) -> None:
    """Renew the lease periodically until `ended` is set or the lease is lost."""
    while not ended.wait(RENEW_S):
        try:
            lease.renew()
        except LeaseLost:
            return  # the job learns of the loss from its next `fence` or `check_lease`, which raises
        except Exception as exc:  # noqa: BLE001  # the catalog may be unavailable for a moment, which the lease outlasts
            log.warning("lease of a rewriting job not renewed; retrying", job=lease.job, reason=str(exc))


def _unchanged_ref(table: IcebergTable, ref: str) -> TableRequirement:
    """The requirement that the ref is as in `table`: at the same snapshot, or absent."""
    current = table.refs().get(ref)
    snapshot_id = current.snapshot_id if current is not None else None
    return AssertRefSnapshotId.model_validate({"ref": ref, "snapshot-id": snapshot_id})


def _ref_update(update_class: type[Any], ref: str, **fields: object) -> Any:
    return update_class.model_validate({"ref-name": ref, **fields})
