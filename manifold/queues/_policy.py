"""The settings that the queues use."""

from dataclasses import dataclass
from functools import cached_property

from manifold.contracts.seq import EPOCH_MS, seq_of
from manifold.settings import Settings

FOREVER_MS = 1 << 50  # a duration without end; small enough that a Lua number (a double) holds it plus an instant exactly


@dataclass(frozen=True)
class Policy:
    """The settings as plain numbers; durations are in milliseconds."""

    presence_ms: int
    retention_ms: int
    ack_deadline_ms: int
    ack_deadline_max_ms: int
    wake_shards: int
    compaction: bool
    ecq_retention_ms: int = 30 * 86_400_000  # how long a compacted queue keeps a message that is not pending
    ecq_pending_retention_ms: int = 30 * 86_400_000  # how long it keeps a pending message; 0: until it is delivered

    @classmethod
    def of(cls, settings: Settings) -> "Policy":
        """Build the policy from the settings."""
        ecq_pending_retention_ms = 0  # without end
        if settings.ecq_pending_retention is not None:
            # At least 1, because 0 would mean without end.
            ecq_pending_retention_ms = max(1, round(settings.ecq_pending_retention.total_seconds() * 1000))
        return cls(
            presence_ms=round(settings.presence_seconds * 1000),
            retention_ms=round(settings.retention_days * 86_400_000),
            ack_deadline_ms=round(settings.ack_deadline_seconds * 1000),
            ack_deadline_max_ms=round(settings.ack_deadline_max_seconds * 1000),
            wake_shards=settings.wake_shards,
            compaction=settings.compaction == "request_id",
            ecq_retention_ms=round(settings.ecq_retention_days * 86_400_000),
            ecq_pending_retention_ms=ecq_pending_retention_ms,
        )

    @cached_property
    def numbers(self) -> tuple[int, int, int, int]:
        """The policy arguments of every script of a fanout queue, in the order in which lua/_owner.lua names them."""
        return self.presence_ms, self.ack_deadline_ms, self.ack_deadline_max_ms, self.retention_ms

    @cached_property
    def ecq_numbers(self) -> tuple[int, int, int, int]:
        """The same arguments for the scripts of a compacted queue, whose pending messages have their own retention."""
        presence_ms, ack_deadline_ms, ack_deadline_max_ms, _ = self.numbers
        retention_ms = FOREVER_MS if self.ecq_pending_retention_ms == 0 else self.ecq_pending_retention_ms
        return presence_ms, ack_deadline_ms, ack_deadline_max_ms, retention_ms

    def ecq_pending_from(self, now_ms: int) -> int:
        """The smallest seq that a pending message of a compacted queue can have without being expired at `now_ms`."""
        *_, retention_ms = self.ecq_numbers
        return seq_of(max(EPOCH_MS, now_ms - retention_ms), 0, 0)

    @cached_property
    def waits_ms(self) -> tuple[int, ...]:
        """The ack deadlines of the first attempts, each twice the one before, up to the maximum.

        The last one applies to all further attempts.
        """
        waits = [self.ack_deadline_ms]
        while waits[-1] < self.ack_deadline_max_ms:
            waits.append(min(waits[-1] * 2, self.ack_deadline_max_ms))
        return tuple(waits)
