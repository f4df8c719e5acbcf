"""The standing of a target: derived from its attempts and the terms of its campaign."""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from manifold.campaigns.facts import SUCCESSES, Attempt, Ending, Terms, settled
from manifold.campaigns.quantities import duration_ms
from manifold.contracts.seq import unix_ms_of


class Status(StrEnum):
    """The state of a target: it waits, is released, or has settled in one of the ways of `Ending`, in the same order."""

    WAITING = "waiting"
    RELEASED = "released"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    BUSY = "busy"
    FAILED = "failed"
    SILENT = "silent"
    REJECTED = "rejected"
    DELIVERED = "delivered"
    CONFIRMED = "confirmed"


STATUSES = tuple(Status)
CODES = {status: code for code, status in enumerate(STATUSES)}
WAITING, RELEASED = CODES[Status.WAITING], CODES[Status.RELEASED]
FIRST_SETTLED = RELEASED + 1  # all codes from here on are of settled targets


class Standing(Struct, frozen=True, gc=False):
    """The state of a target, and since when."""

    status: Status
    since: int = 0  # the seq that made it so; 0: it waits from the beginning
    not_before_ms: int = 0  # of a target that waits for its retry


def standing(attempts: Sequence[Attempt], terms: Terms) -> Standing:
    """The standing of a target after these attempts, oldest first. A success of any of them settles it.

    A target whose last attempt had ended so before an order to try again waits from that order on, and its attempts are
    counted from there.
    """
    ends = [settled(attempt, terms) for attempt in attempts]
    success = next(((ending, seq) for ending, seq in reversed(ends) if ending in SUCCESSES), None)
    if success is not None:
        return Standing(Status(str(success[0])), success[1])
    for attempt, (ending, _) in zip(reversed(attempts), reversed(ends), strict=True):
        if ending is None:
            return Standing(Status.RELEASED, attempt.release)
    last, ended = ends[-1]
    assert last is not None
    anew = max((order.seq for order in terms.again if order.seq > ended and last in order.endings), default=0)
    if anew:
        return Standing(Status.WAITING, anew)
    if last is Ending.WITHDRAWN:
        return Standing(Status.WAITING, ended)
    if terms.retry is not None and terms.retry.tries_again(last):
        from_seq = max((order.seq for order in terms.again if order.seq < ended and last in order.endings), default=0)
        failures = sum(ending in terms.retry.on and seq > from_seq for ending, seq in ends)
        if failures <= terms.retry.times:
            return Standing(Status.WAITING, ended, unix_ms_of(ended) + duration_ms(terms.retry.after))
    return Standing(Status(str(last)), ended)
