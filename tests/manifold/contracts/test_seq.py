"""seq: unique, time-ordered, never decreasing."""

from datetime import UTC, datetime, timedelta
from itertools import accumulate, cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifold.contracts.seq import (
    EPOCH_MS,
    MAX_SEQ,
    SKIPPED_MS,
    SeqSource,
    datetime_of,
    first_seq_at,
    node_of,
    seq_of,
    unix_ms_of,
)

STEPS = st.lists(st.integers(-600_000, 600_000), min_size=1, max_size=200)


@given(steps=STEPS, node=st.integers(0, 1023))
def test_seq_strictly_increases_while_the_clock_steps_back_and_forth(steps: list[int], node: int) -> None:
    times = accumulate(cycle(steps), initial=EPOCH_MS + 10**11)
    source = SeqSource(node, clock_ms=lambda: next(times))

    seqs = [source.next() for _ in range(300)]

    assert seqs == sorted(set(seqs))
    assert {node_of(seq) for seq in seqs} == {node}


def test_a_counter_overflow_borrows_the_next_millisecond() -> None:
    source = SeqSource(0, clock_ms=lambda: EPOCH_MS + 10)

    seqs = [source.next() for _ in range(5000)]

    assert seqs == sorted(set(seqs))
    assert unix_ms_of(seqs[-1]) == EPOCH_MS + 11


def test_a_restart_with_the_clock_in_the_past_continues_after_the_last_seq() -> None:
    last = seq_of(EPOCH_MS + 10_000, 3, 7)

    assert SeqSource(3, after=last, clock_ms=lambda: EPOCH_MS).next() > last


def test_no_seq_is_issued_in_the_skipped_millisecond() -> None:
    source = SeqSource(0, clock_ms=lambda: SKIPPED_MS)

    assert unix_ms_of(source.next()) == SKIPPED_MS + 1


@given(st.integers(EPOCH_MS, EPOCH_MS + (1 << 41) - 1), st.integers(0, 1023), st.integers(0, 4095))
def test_the_parts_of_a_seq_can_be_read_back(ms: int, node: int, counter: int) -> None:
    seq = seq_of(ms, node, counter)

    assert 0 <= seq <= MAX_SEQ
    assert (unix_ms_of(seq), node_of(seq)) == (ms, node)


@given(st.datetimes(datetime(2020, 1, 1), datetime(2080, 1, 1)), st.integers(0, 10**6))
def test_the_first_seq_of_an_instant_separates_before_from_after(naive: datetime, microseconds: int) -> None:
    instant = naive.replace(tzinfo=UTC) + timedelta(microseconds=microseconds)
    first = first_seq_at(instant)

    assert datetime_of(first) >= instant
    assert first == 0 or datetime_of(first - 1) < instant


def test_naive_instants_and_node_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        first_seq_at(datetime(2026, 1, 1))
    with pytest.raises(ValueError, match=r"node=1024 is outside 0\.\.1023"):
        SeqSource(1024)
