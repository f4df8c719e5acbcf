"""The state of a compacted queue is the same for its rows in any order, repeated, and compacted."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from manifold.contracts.ecq_rows import RecordedState, StateRow, compact
from manifold.contracts.ecq_state import fold
from manifold.contracts.tables import StateKind

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SETTLED = NOON - timedelta(days=1)
SEQS = [*range(1, 9), 150, 250, 350, 450]


def acked(seq: int, epoch: int = 0, at: int = 0) -> StateRow:
    return StateRow(seq, SETTLED - timedelta(seconds=100 - at), epoch, StateKind.ACKNOWLEDGED)


def rewound(rewind: int, first: int) -> StateRow:
    return StateRow(first - 1, SETTLED - timedelta(seconds=50), rewind, StateKind.REWOUND)


def expired(seq: int, epoch: int = 0, at: int = 0) -> StateRow:
    return acked(seq, epoch, at)._replace(kind=StateKind.EXPIRED)


def what(rows: list[StateRow]) -> tuple[object, ...]:
    state = RecordedState(rows)
    acknowledged = [seq for seq in SEQS if state.is_acknowledged(seq)]
    return state.epoch, state.acked_seq, state.acked_at, acknowledged, [state.expired_at(seq) for seq in SEQS]


@pytest.mark.parametrize(
    ("rows", "position", "acknowledged"),
    [
        pytest.param([], None, [], id="nothing is recorded"),
        pytest.param([acked(3), acked(2)], 3, [2, 3], id="the position does not go back"),
        pytest.param([acked(3), rewound(10, 3)], 2, [], id="a rewind revives its first seq"),
        pytest.param([acked(3), acked(2), rewound(10, 3)], 2, [2], id="a rewind keeps earlier messages acknowledged"),
        pytest.param([acked(3), rewound(10, 0)], 0, [], id="to earliest"),
        pytest.param([acked(3), acked(4, 10), rewound(10, 0)], 4, [4], id="acknowledged after the rewind"),
        pytest.param([acked(3), rewound(10, 0), acked(5)], 0, [], id="a late acknowledgement of an earlier epoch"),
        pytest.param([rewound(10, 0), acked(150)], 150, [150], id="written after a rewind whose epoch was forgotten"),
        pytest.param([rewound(10, 3)], None, [], id="rewound before anything was acknowledged"),
        pytest.param([acked(3), rewound(10, 2), rewound(20, 9)], 1, [], id="a later rewind does not revive it"),
        pytest.param([expired(3), acked(2)], 3, [2], id="an expired message moves the position"),
        pytest.param([expired(3), acked(3)], 3, [], id="acknowledged too late"),
    ],
)
def test_rows_fold_to_the_state(rows: list[StateRow], position: int | None, acknowledged: list[int]) -> None:
    assert what(rows)[1] == position
    assert what(rows)[3] == acknowledged
    assert what(rows[::-1] + rows) == what(rows)


def test_a_rewind_moves_the_position_and_revives_no_expired_message() -> None:
    state = RecordedState([expired(3, at=7), acked(2), rewound(10, 2), expired(3, epoch=10, at=9)])
    assert state.expired_at(3) == acked(3, at=7).acked_at, "the first expiry counts"
    assert (state.acked_seq, state.is_acknowledged(2), state.expired_at(2)) == (3, False, None)
    assert RecordedState([expired(3), rewound(10, 2)]).acked_seq == 1


def rows_of(epochs: list[int], at: datetime) -> st.SearchStrategy[StateRow]:
    times = st.integers(0, 9).map(lambda s: at + timedelta(seconds=s))
    kinds = st.sampled_from([StateKind.ACKNOWLEDGED.value, StateKind.ACKNOWLEDGED.value, StateKind.EXPIRED.value])
    acks = st.builds(StateRow, st.sampled_from(SEQS), times, st.sampled_from(epochs), kinds)
    rewinds = st.builds(
        StateRow, st.integers(-1, 11), times, st.sampled_from([e for e in epochs if e] or [1]), st.just(StateKind.REWOUND.value)
    )
    return acks | rewinds


OLD = st.lists(rows_of([0, 100, 200, 300], SETTLED - timedelta(hours=1)), max_size=12)
# Later records: of the last settled epoch, or later ones.
LATER = st.lists(rows_of([400, 500], NOON), max_size=8)
LIVE = st.sets(st.sampled_from(SEQS))


def what_lives(rows: list[StateRow], live: set[int]) -> tuple[object, ...]:
    state = RecordedState(rows)
    return (
        state.epoch if live else 0,
        state.acked_seq,
        state.acked_at,
        [seq for seq in sorted(live) if state.is_acknowledged(seq)],
        [state.expired_at(seq) for seq in sorted(live)],
    )


@given(OLD, st.randoms())
def test_order_and_repetition_of_rows_do_not_matter(rows: list[StateRow], random: object) -> None:
    mixed = rows + rows[: len(rows) // 2]
    random.shuffle(mixed)  # type: ignore[attr-defined]  # Random
    assert what(mixed) == what(rows)


@given(OLD, LIVE)
def test_recorded_state_equals_the_fold_of_its_rows(rows: list[StateRow], live: set[int]) -> None:
    acks = [(row.acked_seq, row.epoch) for row in rows if row.kind == StateKind.ACKNOWLEDGED]
    rewinds = [(row.epoch, row.acked_seq + 1) for row in rows if row.kind == StateKind.REWOUND]
    ended = [(row.acked_seq, row.epoch) for row in rows if row.kind == StateKind.EXPIRED]
    rule, state = fold([(seq, str(seq)) for seq in live], acks, rewinds, ended), RecordedState(rows)
    assert (state.epoch, state.acked_seq) == (rule.epoch, rule.position)
    assert {seq for seq in live if state.is_acknowledged(seq)} == rule.acknowledged
    assert {seq for seq in live if state.expired_at(seq) is not None} == rule.expired


@given(OLD, LATER, LIVE)
@example([acked(450, 100), acked(450, 0, at=1)], [rewound(400, 1)], set())
@example([expired(1), rewound(100, 1), rewound(200, 2)], [], {1})
def test_compacted_rows_fold_to_the_same_state_now_and_later(old: list[StateRow], later: list[StateRow], live: set[int]) -> None:
    once = compacted(old, live)
    assert what_lives(once, live) == what_lives(old, live)
    assert what_lives(once + later, live) == what_lives(old + later, live)
    assert compact(once, live, older_than=SETTLED) == ([], [])
    everything = compacted(old + later, live)
    assert what_lives(everything, live) == what_lives(old + later, live)


@given(OLD, LIVE)
def test_compaction_output_changes_nothing_before_rows_are_removed(old: list[StateRow], live: set[int]) -> None:
    done = compact(old, live, older_than=SETTLED)
    assert what(old + done.added) == what(old)


@given(OLD, LIVE)
def test_few_of_the_settled_rows_remain(old: list[StateRow], live: set[int]) -> None:
    assert len(compacted(old, live)) <= len(live) + 2


def compacted(rows: list[StateRow], live: set[int]) -> list[StateRow]:
    done = compact(rows, live, older_than=SETTLED)
    gone = set(done.removed)
    return [*dict.fromkeys(row for row in rows if row not in gone), *done.added]
