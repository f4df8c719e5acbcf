"""Decisions about the messages of a group. Each message is in exactly one list."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from manifold.contracts.signals.codes import Code, Refusal
from manifold.contracts.signals.processing import ProcessedData
from manifold.signals._idempotency import Claim
from manifold.signals._received import Accepted, Received
from manifold.signals._stated_identity import StatedIdentity, stated_identity_of

RETRIES_EXHAUSTED = "all retries failed"
EXPIRED = Refusal(Code.PROCESSING_ERROR, "it expired in its queue before a door took it", "send it again, or have it replayed")
_REPLAY = Refusal(Code.REPLAY_ERROR, "the nonce is that of another message", "x-nonce: a new one for each message")
_CONFLICT = Refusal(Code.IDEMPOTENCY_CONFLICT, "the key is that of another signal", "x-idempotency-key: one for each signal")


Key = tuple[str, str]  # device id and idempotency key of a signal


@dataclass(frozen=True, slots=True, eq=False)
class Refused:
    """A refused message, the refusal, and the identity that the message states but does not prove."""

    received: Received
    refusal: Refusal
    stated: StatedIdentity
    digest: str  # the same for every delivery of the message

    @classmethod
    def of(cls, received: Received, refusal: Refusal) -> "Refused":
        """Describe a refused message. Parses the body again to find the stated identity."""
        return cls(received, refusal, stated_identity_of(received), received.digest)


@dataclass(slots=True)
class Disposition:
    """Decisions about one group."""

    claimed: list[Accepted] = field(default_factory=list)  # messages that claimed their key: to be recorded and published
    processed_data: dict[int, ProcessedData] = field(default_factory=dict)  # of the signals in `claimed`, by delivery tag
    duplicates: list[Accepted] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    to_retry: list[tuple[Received, str]] = field(default_factory=list)  # with the reason
    expired: list[Refused] = field(default_factory=list)  # copies of messages that expired in a queue: only to be recorded
    recorded_copies: list[Received] = field(default_factory=list)  # copies of dead letters that are already recorded
    rejected_by: dict[int, str] = field(default_factory=dict)  # the full queue that rejected the publish, by delivery tag

    @property
    def received(self) -> list[Received]:
        """Every message of the group, unordered."""
        accepted = [message.received for message in self.claimed + self.duplicates]
        refused = [refused.received for refused in self.refused + self.expired]
        to_retry = [received for received, _ in self.to_retry]
        return accepted + refused + to_retry + self.recorded_copies

    def split(self, tags: Collection[int]) -> tuple["Disposition", "Disposition"]:
        """Return two groups: the messages with these delivery tags, and all other messages."""
        return self._filtered(lambda tag: tag in tags), self._filtered(lambda tag: tag not in tags)

    def add(self, other: "Disposition") -> None:
        """Append the messages of another group."""
        self.claimed += other.claimed
        self.processed_data |= other.processed_data
        self.duplicates += other.duplicates
        self.refused += other.refused
        self.to_retry += other.to_retry
        self.expired += other.expired
        self.recorded_copies += other.recorded_copies
        self.rejected_by |= other.rejected_by

    def refuse(self, received: Received, refusal: Refusal) -> None:
        """Add a message to the refused ones."""
        self.refused.append(Refused.of(received, refusal))

    def add_copy(self, received: Received) -> None:
        """Add a copy of a dead letter to `recorded_copies` if it is already recorded, else to `expired`."""
        if received.is_recorded_copy:
            self.recorded_copies.append(received)
        else:
            self.expired.append(Refused.of(received, EXPIRED))

    def add_accepted(self, message: Accepted, claim: Claim, claimed_keys: set[Key]) -> None:
        """Add a message that passed the checks to the list that follows from its claim in Redis.

        `claimed_keys` are the keys claimed so far, in this group and in unfinished groups. A message with one of these keys is a
        duplicate. If this message claims its key, the key is added.
        """
        key = _key(message)
        match claim:
            case Claim.NEW | Claim.AGAIN if key not in claimed_keys:
                claimed_keys.add(key)
                self.claimed.append(message)
            case Claim.REPLAY:
                self.refuse(message.received, _REPLAY)
            case Claim.CONFLICT:
                self.refuse(message.received, _CONFLICT)
            case Claim.BUSY if key not in claimed_keys:
                self.to_retry.append((message.received, "another message is processing the same signal"))
            case _:  # the same signal was processed before, or `claimed_keys` has its key
                self.duplicates.append(message)

    @property
    def claimed_keys(self) -> frozenset[Key]:
        """Keys that the group claims until it is acknowledged."""
        return frozenset(_key(message) for message in self.claimed)

    def refuse_exhausted(self, max_retries: int) -> None:
        """Refuse the messages in `to_retry` that were already retried `max_retries` times or more."""
        exhausted = [(received, why) for received, why in self.to_retry if received.retry_count >= max_retries]
        for received, why in exhausted:
            self.to_retry.remove((received, why))
            self.refuse(received, Refusal(Code.PROCESSING_ERROR, RETRIES_EXHAUSTED, why))

    def _filtered(self, includes: Callable[[int], bool]) -> "Disposition":
        """Return the messages whose delivery tag `includes` accepts."""
        return Disposition(
            claimed=[message for message in self.claimed if includes(message.received.tag)],
            processed_data={tag: data for tag, data in self.processed_data.items() if includes(tag)},
            duplicates=[message for message in self.duplicates if includes(message.received.tag)],
            refused=[refused for refused in self.refused if includes(refused.received.tag)],
            to_retry=[(received, why) for received, why in self.to_retry if includes(received.tag)],
            expired=[refused for refused in self.expired if includes(refused.received.tag)],
            recorded_copies=[received for received in self.recorded_copies if includes(received.tag)],
            rejected_by={tag: queue for tag, queue in self.rejected_by.items() if includes(tag)},
        )


def _key(message: Accepted) -> Key:
    return message.parsed.device_id, message.key
