"""The findings of a verification, and the publishes that it compares with the record of a campaign."""

from enum import StrEnum

from msgspec import Struct

from manifold.contracts.campaigns import Counts


class Kind(StrEnum):
    """The kind of a finding."""

    RELEASED_TWICE = "released twice"
    TOO_EARLY = "too early"
    OUTSIDE_WINDOW = "outside its window"
    OVER_RATE = "over the rate"
    AFTER_STOP = "after a stop"
    LOST = "lost"
    NOT_A_TARGET = "not a target"
    WITHOUT_APPROVAL = "without approval"
    GATE = "past its gate"
    RULE = "in spite of a rule"
    MISCOUNTED = "miscounted"


class Falsification(Struct, frozen=True):
    """One finding: a record that contradicts the plan or other records."""

    kind: Kind
    seq: int  # the seq of the contradicting record
    detail: str
    vin: str = ""


class Sent(Struct, frozen=True, gc=False):
    """The first publish of the entry (vin, release), as recorded by the dispatcher."""

    vin: str
    release: int
    at_ms: int


def words_of(counts: Counts) -> str:
    """Format counts for a message, such as `released 10, known 8`."""
    return ", ".join(f"{name} {number}" for name, number in counts.items()) or "nothing"
