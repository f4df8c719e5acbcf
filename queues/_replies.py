"""What the verbs answer, as types. The first part of every reply is a word."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from contracts.outcomes import OF_CODE, Outcome

Raw = Sequence[bytes | int]


class ClaimWord(StrEnum):
    """How an attempt to put the next entry in flight went."""

    CLAIMED = "claimed"  # it is in flight now: publish it
    BUSY = "busy"  # another entry is in flight
    IDLE = "idle"  # nothing is pending
    ABSENT = "absent"  # the vehicle is not here
    UNSUBSCRIBED = "unsubscribed"  # the vehicle is here and does not listen
    OVER = "over"  # the oldest entries must not be sent any more: end them first
    NONE = "none"  # no claim was asked for


class Over(NamedTuple):
    """A pending entry that has to end, and how."""

    seq: int
    outcome: Outcome
    attempts: int


class Claim(NamedTuple):
    """`seq`, `attempts` and `deadline_ms` are those of the entry in flight; 0 where none is."""

    word: ClaimWord
    seq: int = 0
    attempts: int = 0
    deadline_ms: int = 0
    over: tuple[Over, ...] = ()


class AckReply(NamedTuple):
    """`word` is `ended`, `known` (it had ended before) or `unknown`; None: not known."""

    word: str
    published_ms: int | None
    attempts: int | None
    next: Claim


class LookReply(NamedTuple):
    """`published_ms` is None where it is not in flight, `attempts` where that is not known, `ended` where it has not."""

    published_ms: int | None
    attempts: int | None
    ended: Outcome | None


class EndReply(NamedTuple):
    """How each entry has ended, in the order in which they were named; None: it is in flight, and is not sent again."""

    outcomes: tuple[Outcome | None, ...]
    next: Claim


class ReleaseReply(NamedTuple):
    """`word` is `released`, `early` (then `deadline_ms` is when to try again) or `stale`."""

    word: str
    attempts: int = 0
    deadline_ms: int = 0


class TouchReply(NamedTuple):
    """`word` is `noted` or `stale`; `released` is the seq that went back to pending."""

    word: str
    released: int | None
    next: Claim


class EnqueueReply(NamedTuple):
    """`word` is `ready`, `queued` or `known`; how many entries were new, and which older ones they replaced."""

    word: str
    queued: int
    superseded: tuple[int, ...]


def word_of(raw: Raw) -> str:
    """The word with which a reply begins."""
    return _text(raw[0])


def claim_reply(raw: Raw) -> Claim:
    """Reads what `claim` in _owner.lua returns."""
    word = ClaimWord(_text(raw[0]))
    if word in (ClaimWord.CLAIMED, ClaimWord.BUSY):
        return Claim(word, int(raw[1]), int(raw[2]), int(raw[3]))
    if word is ClaimWord.OVER:
        triples = zip(raw[1::3], raw[2::3], raw[3::3], strict=True)
        return Claim(word, over=tuple(Over(int(seq), OF_CODE[int(how)], int(attempts)) for seq, how, attempts in triples))
    return Claim(word)


def ack_reply(raw: Raw) -> AckReply:
    """Reads what ack.lua returns."""
    return AckReply(_text(raw[0]), _number(raw[1]), _number(raw[2]), claim_reply(raw[3:]))


def look_reply(raw: Raw) -> LookReply:
    """Reads what look.lua returns."""
    return LookReply(_number(raw[0]), _number(raw[1]), OF_CODE.get(_number(raw[2]) or 0))


def end_reply(raw: Any) -> EndReply:
    """Reads what end.lua returns."""
    return EndReply(tuple(OF_CODE.get(int(how)) for how in raw[0]), claim_reply(raw[1:]))


def release_reply(raw: Raw) -> ReleaseReply:
    """Reads what release.lua returns."""
    match _text(raw[0]):
        case "released":
            return ReleaseReply("released", attempts=int(raw[1]))
        case "early":
            return ReleaseReply("early", deadline_ms=int(raw[1]))
        case word:
            return ReleaseReply(word)


def touch_reply(raw: Raw) -> TouchReply:
    """Reads what touch.lua returns."""
    return TouchReply(_text(raw[0]), _number(raw[1]), claim_reply(raw[2:]))


def enqueue_reply(raw: Any) -> EnqueueReply:
    """Reads what enqueue.lua and unpark.lua return."""
    return EnqueueReply(_text(raw[0]), int(raw[1]), tuple(int(seq) for seq in raw[2]) if len(raw) > 2 else ())


def park_reply(raw: Raw) -> Claim:
    """Reads what park.lua returns: the claim of the entry that follows; NONE where the parked one was not in flight any more."""
    return claim_reply(raw[1:])


def _text(value: bytes | int) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _number(value: bytes | int) -> int | None:
    return int(value) if value != b"" else None
