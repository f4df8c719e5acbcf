"""Decisions about the messages of a group. Each message is in exactly one list."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from manifold.contracts.signals.codes import Code, Refusal
from manifold.contracts.signals.processing import ProcessedData
from manifold.signals._idempotency import Claim
from manifold.signals._received import Accepted, Received
from manifold.signals._stated_identity import StatedIdentity, stated_identity_of

NOTHING_LEFT = "all retries failed"
EXPIRED = Refusal(Code.PROCESSING_ERROR, "it expired in its queue before a door took it", "send it again, or have it replayed")
_REPLAY = Refusal(Code.REPLAY_ERROR, "the nonce is that of another message", "x-nonce: a new one for each message")
_CONFLICT = Refusal(Code.IDEMPOTENCY_CONFLICT, "the key is that of another signal", "x-idempotency-key: one for each signal")


Key = tuple[str, str]  # device id and idempotency key of a signal


@dataclass(frozen=True, slots=True, eq=False)
class Refused:
    """A refused message, the refusal, and the identity that the message states."""

    received: Received
    refusal: Refusal
    stated: StatedIdentity
    digest: str  # the same for every delivery of the message

    @classmethod
    def of(cls, received: Received, refusal: Refusal) -> "Refused":
        """Build from a message; its body is parsed again for the stated identity."""
        return cls(received, refusal, stated_identity_of(received), received.digest)


@dataclass(slots=True)
class Disposition:
    """Decisions about one group."""

    taken: list[Accepted] = field(default_factory=list)
    data: dict[int, ProcessedData] = field(default_factory=dict)  # of the signals in `taken`, by delivery tag
    duplicates: list[Accepted] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    later: list[tuple[Received, str]] = field(default_factory=list)  # to retry, with the reason
    expired: list[Refused] = field(default_factory=list)  # already dead letters (expired in their queue); recorded only
    seen: list[Received] = field(default_factory=list)  # copies of dead letters that are already recorded
    rejected_by: dict[int, str] = field(default_factory=dict)  # the full queue that rejected the publish, by delivery tag

    @property
    def received(self) -> list[Received]:
        """Every message of the group, unordered."""
        accepted = (one.received for one in (*self.taken, *self.duplicates))
        refused = (one.received for one in (*self.refused, *self.expired))
        return [*accepted, *refused, *(received for received, _ in self.later), *self.seen]

    def split(self, tags: Collection[int]) -> tuple["Disposition", "Disposition"]:
        """Return the messages with these delivery tags, and the rest."""
        return self._filtered(lambda tag: tag in tags), self._filtered(lambda tag: tag not in tags)

    def add(self, other: "Disposition") -> None:
        """Append the messages of another group."""
        self.taken += other.taken
        self.data |= other.data
        self.duplicates += other.duplicates
        self.refused += other.refused
        self.later += other.later
        self.expired += other.expired
        self.seen += other.seen
        self.rejected_by |= other.rejected_by

    def refuse(self, received: Received, refusal: Refusal) -> None:
        """Refuse the message."""
        self.refused.append(Refused.of(received, refusal))

    def note_copy(self, received: Received) -> None:
        """Sort in a copy of a dead letter."""
        if received.was_seen:
            self.seen.append(received)
        else:
            self.expired.append(Refused.of(received, EXPIRED))

    def note(self, message: Accepted, claim: Claim, held: set[Key]) -> None:
        """Sort in a checked message by its claim in Redis; `held` contains the keys of this group and the unfinished ones."""
        where = _key(message)
        match claim:
            case Claim.NEW | Claim.AGAIN if where not in held:
                held.add(where)
                self.taken.append(message)
            case Claim.REPLAY:
                self.refuse(message.received, _REPLAY)
            case Claim.CONFLICT:
                self.refuse(message.received, _CONFLICT)
            case Claim.BUSY if where not in held:
                self.later.append((message.received, "another message is processing the same signal"))
            case _:  # a duplicate, of a processed signal or of one in this group
                self.duplicates.append(message)

    @property
    def held(self) -> frozenset[Key]:
        """Keys that the group claims until it is acknowledged."""
        return frozenset(map(_key, self.taken))

    def give_up(self, max_retries: int) -> None:
        """Refuse messages that have used up their retries."""
        for received, why in [entry for entry in self.later if entry[0].retry_count >= max_retries]:
            self.later.remove((received, why))
            self.refuse(received, Refusal(Code.PROCESSING_ERROR, NOTHING_LEFT, why))

    def _filtered(self, has: Callable[[int], bool]) -> "Disposition":
        return Disposition(
            taken=[one for one in self.taken if has(one.received.tag)],
            data={tag: data for tag, data in self.data.items() if has(tag)},
            duplicates=[one for one in self.duplicates if has(one.received.tag)],
            refused=[one for one in self.refused if has(one.received.tag)],
            later=[(received, why) for received, why in self.later if has(received.tag)],
            expired=[one for one in self.expired if has(one.received.tag)],
            seen=[received for received in self.seen if has(received.tag)],
            rejected_by={tag: queue for tag, queue in self.rejected_by.items() if has(tag)},
        )


def _key(message: Accepted) -> Key:
    return message.parsed.device_id, message.key
