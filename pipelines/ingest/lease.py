"""Lease of jobs that rewrite tables: compaction, garbage collection, erasure, restore, rollback, repair, migration.

At most one of these jobs works on the lake at a time. Ingest takes no lease and never waits for one.

The lease is kept in the metadata of `ingested_segments`, next to the commit point: the tag `lease` says that it is taken, the tag
`lease_<token>` by whom, and a table property records the holder's name and the expiry. Tags are compared and swapped because a
commit can require refs to be unchanged, but no other part of the metadata. The commit point of a holder's run requires the
holder's tag, so a holder that was replaced cannot publish.

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
from pipelines.ingest.branches import commit

LEASE_S = 45.0  # shorter than Airflow's two retries of a job together
RENEW_S = 15.0
TRIES = 30
TAKEN = "lease"  # tag: the lease is taken
HOLDER = "lease_"  # + token: tag that identifies the holder
TERMS = "manifold.lease"  # table property: holder and expiry as JSON

Clock = Callable[[], datetime]
now_utc: Clock = partial(datetime.now, UTC)

log = structlog.get_logger(__name__)
_held: ContextVar["Lease | None"] = ContextVar("lease", default=None)


class LeaseHeld(Retryable):
    """Another job is rewriting tables. Nothing happened; try again after it has ended."""


class LeaseLost(Retryable):
    """The lease expired and another job took it. Nothing was published since; run the job again."""


class Lease:
    """The lease of one job, held or wanted."""

    def __init__(self, catalog: Catalog, job: str, clock: Clock = now_utc) -> None:
        self._catalog, self._clock = catalog, clock
        self.job, self._tag = f"{job} (process {os.getpid()} on {socket.gethostname()})", HOLDER + secrets.token_hex(8)

    def take(self) -> None:
        """Take the lease, if it is free or has expired.

        Raises:
            LeaseHeld: another job holds it; the message names the holder and the expiry.
        """

        def change(table: IcebergTable) -> tuple[list[TableRequirement], list[TableUpdate]]:
            if self._tag in table.refs():
                return [], []  # already taken; the reply was lost
            self._require_free(table)
            seen = [name for name in table.refs() if name.startswith(HOLDER)]
            main = table.metadata.current_snapshot_id
            tags = [_update(SetSnapshotRefUpdate, name, type="tag", **{"snapshot-id": main}) for name in (TAKEN, self._tag)]
            drops = [_update(RemoveSnapshotRefUpdate, name) for name in seen]
            return [_unchanged_ref(table, name) for name in (TAKEN, *seen)], [*drops, *tags, self._terms()]

        self._commit(change)

    def renew(self) -> None:
        """Extend the lease.

        Raises:
            LeaseLost: another job has taken the lease.
        """
        self._commit(lambda table: (list(self.fence(table)), [self._terms()]))

    def release(self) -> None:
        """Let other jobs take the lease at once; no effect if one has already taken it."""

        def change(table: IcebergTable) -> tuple[list[TableRequirement], list[TableUpdate]]:
            if self._tag not in table.refs():
                return [], []
            drops = [_update(RemoveSnapshotRefUpdate, name) for name in (TAKEN, self._tag) if name in table.refs()]
            forgets = [RemovePropertiesUpdate(removals=[TERMS])] if TERMS in table.properties else []
            return [_unchanged_ref(table, self._tag)], [*drops, *forgets]

        self._commit(change)

    def fence(self, segments: IcebergTable) -> tuple[TableRequirement, ...]:
        """Requirements that make a commit to `ingested_segments` fail once another job holds the lease.

        Raises:
            LeaseLost: another job has taken the lease.
        """
        if self._tag not in segments.refs():
            raise LeaseLost(f"{self.job} did not renew its lease for {LEASE_S:.0f} s, and another job took it; do it again")
        return (_unchanged_ref(segments, self._tag),)

    def _require_free(self, table: IcebergTable) -> None:
        try:
            terms = json.loads(table.properties.get(TERMS, "{}"))
            holder, until = str(terms["holder"]), datetime.fromisoformat(terms["until"])
        except (ValueError, TypeError, KeyError):  # free, or the property is malformed
            return
        if TAKEN in table.refs() and self._clock() < until:
            raise LeaseHeld(
                f"{holder} holds the maintenance lease until {until:%Y-%m-%d %H:%M:%S} UTC and renews it while it works; "
                "try again when it has ended"
            )

    def _terms(self) -> TableUpdate:
        terms = {"holder": self.job, "until": (self._clock() + timedelta(seconds=LEASE_S)).isoformat()}
        return SetPropertiesUpdate(updates={TERMS: json.dumps(terms)})

    def _commit(self, change: Callable[[IcebergTable], tuple[list[TableRequirement], list[TableUpdate]]]) -> None:
        for _ in range(TRIES):
            table = self._catalog.load_table(SEGMENTS.identifier)
            requires, updates = change(table)
            if not updates:
                return
            try:
                commit(table, (AssertTableUUID(uuid=table.metadata.table_uuid), *requires), tuple(updates))
            except (CommitFailedException, CommitStateUnknownException):
                continue  # concurrent commit or lost reply: read again
            return
        raise Retryable(f"too many concurrent commits to {SEGMENTS.identifier}; try again")


@contextmanager
def rewriting(catalog: Catalog, job: str, *, clock: Clock = now_utc) -> Iterator[None]:
    """Hold the lease during the block, under the name `job`. A lake without tables has nothing to rewrite and needs no lease.

    Raises:
        LeaseHeld: another job holds it.
    """
    if not catalog.table_exists(SEGMENTS.identifier):
        yield
        return
    lease = Lease(catalog, job, clock)
    lease.take()
    ended = threading.Event()
    renewing = threading.Thread(target=_renew, args=(lease, ended), name="lease", daemon=True)
    renewing.start()
    held = _held.set(lease)
    try:
        yield
    finally:
        _held.reset(held)
        ended.set()
        renewing.join()
        try:
            lease.release()
        except Exception as exc:  # noqa: BLE001  # the job has ended, and its lease expires by itself
            log.warning(
                "lease of a rewriting job not released; it expires automatically", job=job, after_s=LEASE_S, reason=str(exc)
            )


def fence(segments: IcebergTable) -> tuple[TableRequirement, ...]:
    """The requirements of the lease that this job holds; none for a job without one, such as an ingest."""
    lease = _held.get()
    return lease.fence(segments) if lease is not None else ()


def check_lease(catalog: Catalog) -> None:
    """Verify before a change that no fence covers that this job still holds the lease that it has taken, if any.

    Raises:
        LeaseLost: another job has taken it.
    """
    if _held.get() is not None:
        fence(catalog.load_table(SEGMENTS.identifier))


def _renew(lease: Lease, ended: threading.Event) -> None:
    while not ended.wait(RENEW_S):
        try:
            lease.renew()
        except LeaseLost:
            return  # the job's next fence or check raises
        except Exception as exc:  # noqa: BLE001  # the catalog may be unavailable for a moment; the lease outlasts that
            log.warning("lease of a rewriting job not renewed; retrying", job=lease.job, reason=str(exc))


def _unchanged_ref(table: IcebergTable, ref: str) -> TableRequirement:
    """Require the ref to be as in `table`: at the same snapshot, or absent."""
    at = table.refs().get(ref)
    return AssertRefSnapshotId.model_validate({"ref": ref, "snapshot-id": at.snapshot_id if at is not None else None})


def _update(kind: type[Any], ref: str, **more: object) -> Any:
    return kind.model_validate({"ref-name": ref, **more})
