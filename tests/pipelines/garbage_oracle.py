"""The rules of garbage collection over plain rows, as an oracle for the queries of `pipelines.maintenance.garbage_rows`."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One delivery, as a row of `sdv_fanout_ids`."""

    vin: str
    seq: int
    data_id: str
    accepted_at: datetime

    @property
    def key(self) -> tuple[str, int]:
        """The key that outcomes refer to."""
        return (self.vin, self.seq)


def overdue(entries: Iterable[Entry], ended: Set[tuple[str, int]], *, cut: datetime) -> list[Entry]:
    """Entries without an outcome accepted before `cut`: they are to expire."""
    return [entry for entry in entries if entry.accepted_at < cut and entry.key not in ended]


def unneeded_data(
    last_seen: Mapping[str, datetime], entries: Iterable[Entry], ended: Set[tuple[str, int]], *, cut: datetime
) -> set[str]:
    """Data ids last seen before `cut` without an entry that lacks an outcome, at any age.

    An entry in flight past its retention has no outcome yet, so its data stays.
    """
    needed = {entry.data_id for entry in entries if entry.key not in ended}
    return {data_id for data_id, at in last_seen.items() if at < cut and data_id not in needed}
