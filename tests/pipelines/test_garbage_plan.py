"""Data needed by a live pending entry is never removed, over random histories, killed anywhere."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.maintenance.garbage_plan import ArchivedSegment, Version, days_to_read, old_segments, old_versions
from tests.pipelines.garbage_oracle import Entry, overdue, unneeded_data
from tests.pipelines.makers import NOON

RETENTION = timedelta(days=30)
DATA_IDS, VINS = ("d0", "d1"), ("V0", "V1")
STEPS = ("ingest", "expire", "data")


@dataclass(slots=True)
class World:
    """Archive, lake and queues as far as garbage collection is concerned, with a clock in days."""

    now: datetime = NOON
    recorded: list[Entry] = field(default_factory=list)  # in the archive, not in the lake
    entries: list[Entry] = field(default_factory=list)  # in the lake
    ended: set[tuple[str, int]] = field(default_factory=set)
    in_flight: set[tuple[str, int]] = field(default_factory=set)
    last_seen: dict[str, datetime] = field(default_factory=dict)
    promised: set[tuple[str, int]] = field(default_factory=set)  # entries whose data was available when accepted
    seq: int = 0

    def publish(self, data_id: str) -> None:
        self.last_seen[data_id] = self.now

    def trigger(self, vin: str, data_id: str, days_ago: int) -> None:
        """A trigger now, or one (`days_ago`) that an old archive adds late."""
        self.seq += 1
        entry = Entry(vin, self.seq, data_id, self.now - timedelta(days=days_ago))
        self.recorded.append(entry)
        if self.last_seen.get(data_id, NOON - 2 * RETENTION) >= self.now - RETENTION:
            self.promised.add(entry.key)

    def deliver(self) -> None:
        """Publish the oldest entry, or acknowledge it if it was published."""
        waiting = [e for e in [*self.entries, *self.recorded] if e.key not in self.ended]
        if waiting:
            key = min(waiting).key
            if key in self.in_flight:
                self.in_flight.remove(key)
                self.ended.add(key)
            else:
                self.in_flight.add(key)

    def ingest(self) -> None:
        self.entries += self.recorded
        self.recorded = []

    def collect(self, dies_after: int, *, triggers_meanwhile: list[tuple[str, str]]) -> None:
        """The steps of the job in order; it may die after any of them. Triggers arrive while it runs."""
        cut = self.now - RETENTION
        for place, step in enumerate(STEPS):
            if place >= dies_after:
                return
            if step == "ingest":
                self.ingest()
            elif step == "expire":
                self.ended |= {e.key for e in overdue(self.entries, self.ended, cut=cut)} - self.in_flight
            else:
                for data_id in unneeded_data(self.last_seen, self.entries, self.ended, cut=cut):
                    del self.last_seen[data_id]
            for vin, data_id in triggers_meanwhile:
                self.trigger(vin, data_id, 0)

    def lacking(self) -> list[Entry]:
        """Entries, live and pending or in flight, whose promised data is gone."""
        live = [e for e in [*self.entries, *self.recorded] if e.key in self.promised and e.key not in self.ended]
        return [e for e in live if e.data_id not in self.last_seen]


vins, data_ids = st.sampled_from(VINS), st.sampled_from(DATA_IDS)
acts = st.one_of(
    st.tuples(st.just("publish"), data_ids),
    st.tuples(st.just("trigger"), vins, data_ids, st.sampled_from([0, 0, 0, 31])),
    st.tuples(st.just("deliver")),
    st.tuples(st.just("ingest")),
    st.tuples(st.just("wait"), st.sampled_from([1, 15, 31])),
    st.tuples(st.just("collect"), st.sampled_from([1, 2, 3, 3, 3]), st.lists(st.tuples(vins, data_ids), max_size=2)),
)


@settings(max_examples=1000, deadline=None)
@given(st.lists(acts, min_size=4, max_size=25))
def test_data_needed_by_a_live_pending_entry_is_never_removed(history: list[tuple]) -> None:  # type: ignore[type-arg]  # acts differ
    world = World()
    for act, *arguments in history:
        if act == "wait":
            world.now += timedelta(days=arguments[0])
        elif act == "collect":
            world.collect(arguments[0], triggers_meanwhile=arguments[1])
        else:
            getattr(world, act)(*arguments)
        assert world.lacking() == []


def test_data_of_a_younger_pending_entry_stays_at_any_age() -> None:
    old, young = NOON - timedelta(days=100), NOON - timedelta(days=1)
    entries = [Entry("V1", 1, "needed", young), Entry("V1", 2, "delivered", young)]
    last_seen = {"needed": old, "delivered": old, "fresh": young}
    assert unneeded_data(last_seen, entries, {("V1", 2)}, cut=NOON - RETENTION) == {"delivered"}


def test_entries_expire_once_and_only_past_the_cut_off() -> None:
    cut = NOON - RETENTION
    entries = [Entry("V1", 1, "d", cut - timedelta(seconds=1)), Entry("V1", 2, "d", cut), Entry("V2", 1, "d", cut - RETENTION)]
    assert overdue(entries, {("V2", 1)}, cut=cut) == [entries[0]]


def test_old_days_are_read_unless_closed_with_the_same_number_of_entries() -> None:
    first, second, third = (date(2026, 1, day) for day in (1, 2, 3))
    assert days_to_read({first: 3, second: 4, third: 1}, {first: 3, second: 3}, before=third) == [second]
    assert days_to_read({first: 1, second: 1}, {}, before=third) == [first, second]


@dataclass(slots=True)
class Days:
    """Entries and outcomes by day, some outcomes without an entry, and the closed days that a collection remembers."""

    entries: list[Entry] = field(default_factory=list)
    ended: set[tuple[str, int]] = field(default_factory=set)
    over: dict[date, int] = field(default_factory=dict)

    def collect(self) -> list[Entry]:
        """The overdue entries found in days that are not closed; then remember the closed ones."""
        counts = Counter(entry.accepted_at.date() for entry in self.entries)
        days = days_to_read(counts, self.over, before=NOON.date())
        found = overdue([e for e in self.entries if e.accepted_at.date() in days], self.ended, cut=NOON)
        still_open = {entry.accepted_at.date() for entry in found}
        self.over = {day: count for day, count in counts.items() if day not in still_open}
        return found


numbers = st.integers(0, 8)
happenings = st.one_of(
    st.tuples(st.just("entry"), numbers),
    st.tuples(st.just("outcome"), numbers),  # for an entry that comes later or never
    st.tuples(st.just("collect"), numbers),
)


@settings(max_examples=500, deadline=None)
@given(st.lists(happenings, max_size=30))
def test_skipped_days_hide_nothing(history: list[tuple[str, int]]) -> None:
    days = Days()
    for what, number in history:
        entry = Entry("V1", number, "d", NOON - timedelta(days=1 + number % 3))
        if what == "entry" and entry not in days.entries:
            days.entries.append(entry)
        elif what == "outcome":
            days.ended.add(entry.key)
        elif what == "collect":
            assert days.collect() == overdue(days.entries, days.ended, cut=NOON)


def line(*days: int) -> list[Version]:
    """Main's snapshots, numbered from 1, each made on its day."""
    return [Version(n, n - 1 or None, NOON + timedelta(days=day)) for n, day in enumerate(days, start=1)]


def test_a_snapshot_stays_as_long_as_a_reader_may_use_it() -> None:
    versions = line(0, 5, 9, 10)
    gone = old_versions(versions, [4], 4, keep=[], cutoff=NOON + timedelta(days=8))
    assert gone == {1}  # the second was the newest until day nine


def test_snapshots_of_main_stay_back_to_the_newest_run() -> None:
    assert old_versions(line(0, 1, 2, 3), [4], 4, keep=[2], cutoff=NOON + timedelta(days=99)) == {1}
    assert old_versions(line(0, 1, 2, 3), [4], 4, keep=[], cutoff=NOON + timedelta(days=99)) == {1, 2, 3}


def test_an_open_run_keeps_its_branch_and_its_base() -> None:
    branch = Version(9, 1, NOON + timedelta(days=1))
    forgotten = [Version(7, 1, NOON + timedelta(days=2)), Version(8, 1, NOON + timedelta(days=98))]
    versions = [*line(0, 1, 2, 3), branch, *forgotten]
    assert old_versions(versions, [4, 9], 4, keep=[], cutoff=NOON + timedelta(days=97)) == {2, 3, 7}


def test_a_segment_is_removed_once_old_and_ingested_except_the_newest_per_recorder() -> None:
    def segment(name: str, days_ago: int, node: str = "0") -> ArchivedSegment:
        return ArchivedSegment(name, "trigger", node, NOON - timedelta(days=days_ago))

    segments = [segment("old", 9), segment("unknown", 9), segment("fresh", 1), segment("last", 9, node="1")]
    gone = old_segments(segments, {"old", "fresh", "last"}, cutoff=NOON - timedelta(days=5))
    assert [s.path for s in gone] == ["old"]
