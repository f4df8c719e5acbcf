"""Seals groups under the day key and writes them to the journal, before anything is published or acknowledged."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, date, datetime

from manifold.archive.journal import Journal
from manifold.contracts.envelope import Envelope, Stream
from manifold.contracts.seq import SeqSource
from manifold.contracts.signals.messages import RawSignal
from manifold.contracts.signals.records import raw_envelope, refused_envelope, status_envelope
from manifold.lake.day_keys import DayKeys
from manifold.signals._disposition import Disposition, Refused
from manifold.signals._received import Accepted
from manifold.signals._retry import Retry

MAX_BYTES_IN_LOOP = 128 << 10  # a larger group is sealed in a thread, to keep the event loop responsive
MAX_REMEMBERED = 1 << 16  # messages; a message forgotten too early is journaled twice, and the lake deduplicates it


class Recording:
    """Writes groups to the journal. Set `seqs` before the first group."""

    def __init__(
        self, day_keys: DayKeys, journal: Journal, wait_until_may_record: Callable[[], Awaitable[None]], retry: Retry
    ) -> None:
        self.seqs: SeqSource
        self._day_keys, self._journal, self._retry = day_keys, journal, retry
        self._wait_until_may_record = wait_until_may_record
        self._recorded = Recorded()
        self._day: date | None = None  # day of the cached key

    async def record(self, disposition: Disposition) -> None:
        """Write the claimed, refused and expired messages to disk, except those that are already in the journal."""
        claimed = [message for message in disposition.claimed if message.identity not in self._recorded]
        all_refused = disposition.refused + disposition.expired
        refused = [message for message in all_refused if message.digest not in self._recorded]
        if claimed or refused:
            await self._wait_until_may_record()
            envelopes = await self._retry.until_done(
                "the storage of day keys", lambda: self._seal_in_thread_if_slow(claimed, refused)
            )
            await self._journal.append(envelopes)
            self._recorded.add(_identities(claimed, refused))

    def forget(self, disposition: Disposition) -> None:
        """Forget the messages of an acknowledged group: a message with the same identity counts as a new message from now on."""
        self._recorded.forget(_identities(disposition.claimed, disposition.refused + disposition.expired))

    async def _seal_in_thread_if_slow(self, claimed: list[Accepted], refused: list[Refused]) -> list[Envelope]:
        """Seal the messages; in a thread if they are large, or if a new day's key must be read or created."""
        claimed_bytes = sum(len(message.payload) for message in claimed)
        refused_bytes = sum(len(message.received.body) for message in refused)
        today = datetime.now(UTC).date()
        if claimed_bytes + refused_bytes <= MAX_BYTES_IN_LOOP and today == self._day:
            return self._seal(claimed, refused)
        envelopes = await asyncio.to_thread(self._seal, claimed, refused)
        self._day = today
        return envelopes

    def _seal(self, claimed: list[Accepted], refused: list[Refused]) -> list[Envelope]:
        """Build the envelopes of a group, with seqs; the payloads of signals and the bodies of refused messages are sealed."""
        return [self._envelope_of(message) for message in claimed] + [self._envelope_of_refused(message) for message in refused]

    def _envelope_of(self, message: Accepted) -> Envelope:
        seq, at, correlation_id = self.seqs.next(), message.received.at, message.correlation_id
        if not isinstance(message.parsed, RawSignal):
            return status_envelope(seq, at, message.parsed, correlation_id=correlation_id)
        sealed = self._day_keys.seal(message.payload, seq=seq)
        ids = {"key": message.key, "correlation_id": correlation_id}
        return raw_envelope(seq, at, message.parsed, sealed, payload=message.payload, **ids)

    def _envelope_of_refused(self, message: Refused) -> Envelope:
        received, seq = message.received, self.seqs.next()
        stream = Stream.XRAY_STATUS if received.is_status else Stream.XRAY_RAW
        sealed = self._day_keys.seal(received.body, seq=seq)
        devices = message.stated.devices
        return refused_envelope(seq, received.at, stream, message.refusal, sealed, devices=devices, digest=message.digest)


class Recorded:
    """The identities of journaled but unacknowledged messages, so that a redelivered message is not journaled again.

    A session may end repeatedly between journal and acknowledgement, for instance while an alarm blocks confirms. Above
    `max_size` identities, the oldest are forgotten.
    """

    def __init__(self, max_size: int = MAX_REMEMBERED) -> None:
        self._max_size = max_size
        self._identities: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, identity: str) -> bool:
        return identity in self._identities

    def add(self, identities: Iterable[str]) -> None:
        """Remember journaled messages."""
        for identity in identities:
            self._identities[identity] = None
            self._identities.move_to_end(identity)
        while len(self._identities) > self._max_size:
            self._identities.popitem(last=False)

    def forget(self, identities: Iterable[str]) -> None:
        """Forget acknowledged messages: the same message sent again counts as a new message."""
        for identity in identities:
            self._identities.pop(identity, None)


def _identities(claimed: list[Accepted], refused: list[Refused]) -> list[str]:
    return [message.identity for message in claimed] + [message.digest for message in refused]
