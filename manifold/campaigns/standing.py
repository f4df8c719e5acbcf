"""Derives the standing of a target from its attempts and the terms of its campaign."""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from manifold.campaigns.facts import SUCCESSES, Attempt, Ending, Terms, effective_ending
from manifold.campaigns.quantities import duration_ms
from manifold.contracts.seq import unix_ms_of


class Status(StrEnum):
    """The status of a target: it waits, is released, or has settled. The settled statuses are those of `Ending`, in its order."""

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
FIRST_SETTLED = RELEASED + 1  # a target has settled if its status code is at least this


class Standing(Struct, frozen=True, gc=False):
    """The status of a target, and since when it has that status."""

    status: Status
    since: int = 0  # the seq of the record that caused the status; 0: the target waits from the beginning
    not_before_ms: int = 0  # when the target may be retried (Unix ms); 0: at any time


def standing(attempts: Sequence[Attempt], terms: Terms) -> Standing:
    """Return the standing of a target after one or more attempts, oldest first.

    If any attempt is a success, the target has settled. Otherwise, if any attempt is open, the target is released. Otherwise the
    ending of the last attempt decides:

    - If an order to try such targets again was recorded after the ending, the target waits from that order on.
    - If the attempt was withdrawn, or the plan retries such endings and has retries left, the target waits. An earlier order to
      try again has reset the number of retries.
    - Otherwise the target has settled with that ending.
    """
    endings = [effective_ending(attempt, terms) for attempt in attempts]
    for ending, seq in reversed(endings):
        if ending in SUCCESSES:
            return Standing(Status(str(ending)), seq)
    for attempt, (ending, _) in zip(reversed(attempts), reversed(endings), strict=True):
        if ending is None:
            return Standing(Status.RELEASED, attempt.release)
    last_ending, ended_seq = endings[-1]
    assert last_ending is not None
    again_seqs = [order.seq for order in terms.again if last_ending in order.endings]
    later_again_seqs = [seq for seq in again_seqs if seq > ended_seq]
    if later_again_seqs:
        return Standing(Status.WAITING, max(later_again_seqs))
    if last_ending is Ending.WITHDRAWN:
        return Standing(Status.WAITING, ended_seq)
    if terms.retry is not None and terms.retry.tries_again(last_ending):
        reset_seq = max((seq for seq in again_seqs if seq < ended_seq), default=0)  # 0: no order has reset the count
        failures = sum(ending in terms.retry.on and seq > reset_seq for ending, seq in endings)
        if failures <= terms.retry.times:  # every failure but the first was that of a retry
            retry_ms = unix_ms_of(ended_seq) + duration_ms(terms.retry.after)
            return Standing(Status.WAITING, ended_seq, retry_ms)
    return Standing(Status(str(last_ending)), ended_seq)
