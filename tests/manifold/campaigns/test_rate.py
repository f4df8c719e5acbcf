"""The rate holds in every 60 s however often the campaigner runs, and no allowance is lost."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from manifold.campaigns.rate import Recent, allowance, next_allowance_ms, recent_of

MINUTE = 60_000


@settings(deadline=None)
@given(st.integers(1, 9), st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 9)), max_size=40))
def test_no_sixty_seconds_hold_more_than_the_rate_at_any_instant(rate: int, looks: list[tuple[int, int]]) -> None:
    now, released = 0, list[tuple[int, int]]()
    recent: Recent = ()
    for seq, (pause_ms, wanted) in enumerate(looks):
        now += pause_ms
        allowed = allowance(recent, rate, now)
        within = sum(number for at_ms, number in released if now - at_ms < MINUTE)
        assert allowed == rate - within  # exactly the allowance
        if min(wanted, allowed):
            released.append((now, min(wanted, allowed)))
            recent = recent_of([*recent, (now, seq, min(wanted, allowed))])


@pytest.mark.parametrize(("now", "allowed"), [(0, 0), (MINUTE - 1, 0), (MINUTE, 3), (MINUTE + 999, 3), (MINUTE + 1000, 5)])
def test_the_allowance_returns_to_the_millisecond(now: int, allowed: int) -> None:
    recent = ((0, 1, 3), (1000, 2, 2))

    assert allowance(recent, 5, now) == allowed


def test_the_next_allowance_is_a_minute_after_the_oldest_that_counts() -> None:
    recent = ((0, 1, 3), (1000, 2, 2))

    assert [next_allowance_ms(recent, now) for now in (1000, MINUTE, MINUTE + 1000)] == [MINUTE, MINUTE + 1000, MINUTE + 1000]


def test_a_lowered_rate_never_gives_a_negative_allowance() -> None:
    assert allowance(((0, 1, 9),), 5, 1000) == 0


@settings(deadline=None)
@example(3, [(0, 2, 0), (30_000, 0, 0), (27_000, 1, 4_000), (500, 2, 0)])
@given(st.integers(1, 9), st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 9), st.integers(0, 6_000)), max_size=40))
def test_the_rate_holds_by_the_record_though_recorders_clocks_run_ahead(rate: int, looks: list[tuple[int, int, int]]) -> None:
    now, released = 0, list[tuple[int, int]]()
    recent: Recent = ()
    for seq, (pause_ms, wanted, ahead_ms) in enumerate(looks):
        now += pause_ms
        number = min(wanted, allowance(recent, rate, now))
        if number:
            released.append((now + ahead_ms, number))
            recent = recent_of([*recent, (now + ahead_ms, seq, number)])
    for first_ms, _ in released:
        assert sum(number for at_ms, number in released if first_ms <= at_ms < first_ms + MINUTE) <= rate
