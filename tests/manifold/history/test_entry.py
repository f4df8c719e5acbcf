"""The JSON form of an entry's history."""

from datetime import UTC, datetime

from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.seq import seq_of, unix_ms_of
from manifold.history.entry import EntryHistory

SEQ = seq_of(1_800_000_000_000, 1, 2)


def test_an_entry_round_trips_through_json() -> None:
    at = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
    for life in (EntryHistory("V", SEQ, "r", "d"), EntryHistory("V", SEQ, "r", "d", "delivered", at, at, None, 2, "said")):
        assert EntryHistory.from_json("V", life.to_json()) == life


def test_an_outcome_ends_an_entry_and_only_a_delivery_is_acknowledged() -> None:
    life = EntryHistory("V", SEQ, "r", "d")
    ms = unix_ms_of(SEQ) + 5

    delivered = life.with_outcome(OutcomeRecord("V", SEQ, Outcome.DELIVERED, ms, ms - 1, 1))
    cancelled = life.with_outcome(OutcomeRecord("V", SEQ, Outcome.CANCELLED, ms))

    assert life.is_open
    assert not delivered.is_open
    assert delivered.acknowledged_at == delivered.ended_at != delivered.accepted_at
    assert (cancelled.state, cancelled.acknowledged_at) == ("cancelled", None)
