"""Withdraws entries of campaigns that must not be sent, while their vehicles are away.

The slow scan of all queues finds these entries.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dispatcher import _metrics
from dispatcher._brakes import WINDOW_OVER, why_braked
from manifold.contracts import keys
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.seq import wall_clock_ms
from manifold.queues import Queues, is_corrupt
from manifold.queues.verbs.ends import End

MAX_CAMPAIGNS = 50  # campaigns that a metric shows


class Withdrawals:
    """Withdraws, during one scan of all queues, the entries of certain triggers, which are given by their seqs.

    `seqs_by_campaign` has the triggers of each braked campaign, `closed_seqs` those whose time windows have ended, and
    `reason_by_seq` why the entries of each trigger are withdrawn. An entry in flight is left unchanged: it ends by its
    acknowledgement, or at its deadline by the next claim. `finish` forgets the triggers of which the scan has found no entry, so
    that later scans need not look for them.
    """

    def __init__(
        self,
        queues: Queues,
        seqs_by_campaign: Mapping[str, list[int]],
        closed_seqs: list[int],
        reason_by_seq: Mapping[int, str],
    ) -> None:
        self._queues, self._seqs_by_campaign = queues, seqs_by_campaign
        self._closed_seqs, self._reason_by_seq = closed_seqs, reason_by_seq
        self._found = set[int]()  # seqs of the triggers of which the scan has found an entry
        # The keys are seqs in ASCII, as Redis returns them.
        self._campaign_of: dict[bytes, str] = {}
        for campaign, seqs in seqs_by_campaign.items():
            self._campaign_of |= dict.fromkeys((str(seq).encode() for seq in seqs), campaign)
        self._in_flight = Counter[str]()  # campaign → number of entries in flight, which no brake can take back

    def __bool__(self) -> bool:
        """Whether there is any trigger whose entries must be withdrawn."""
        return bool(self._reason_by_seq)

    @classmethod
    async def of(cls, queues: Queues) -> "Withdrawals":
        """Read from Redis which triggers must not be sent now.

        Raises:
            redis.RedisError: Redis is unavailable or rejects a command.
        """
        known = await queues.brakes()
        closed_seqs = await queues.closed_windows(known.now_ms)
        reason_by_seq = dict.fromkeys(closed_seqs, WINDOW_OVER)
        brakes = {campaign: brake for campaign, brake in known.brakes.items() if brake.is_on}
        seqs_by_campaign = dict(zip(brakes, await queues.release_seqs(list(brakes)), strict=True))
        for campaign, seqs in seqs_by_campaign.items():
            reason_by_seq |= dict.fromkeys(seqs, why_braked(campaign, brakes[campaign]))
        return cls(queues, seqs_by_campaign, closed_seqs, reason_by_seq)

    async def withdraw(self, owners: Iterable[str]) -> None:
        """End the entries of these triggers that are pending or parked for these vehicles.

        Raises:
            redis.RedisError: Redis is unavailable or rejects a command.
        """
        scanned = list(owners)
        batch = self._queues.batch()
        for owner in scanned:
            batch.call(("ZRANGE", keys.pending(owner), 0, -1), list)
            batch.call(("ZRANGE", keys.parked(owner), 0, -1), list)
            batch.call(("HGET", keys.inflight(owner), "seq"), _identity)
        replies = await batch.run(tolerant=True)
        withdrawn: dict[str, list[int]] = {}  # owner → seqs
        for owner, pending, parked, in_flight in zip(scanned, replies[0::3], replies[1::3], replies[2::3], strict=True):
            if any(map(is_corrupt, (pending, parked, in_flight))):
                continue  # the scan logs the corrupt keys
            if in_flight in self._campaign_of:
                self._in_flight[self._campaign_of[in_flight]] += 1
            seqs = [int(seq) for seq in (*pending, *parked) if seq != in_flight and int(seq) in self._reason_by_seq]
            if in_flight is not None and int(in_flight) in self._reason_by_seq:
                # Keep its trigger: if the vehicle stays away, the entry may be pending again, and a later scan must withdraw it.
                self._found.add(int(in_flight))
            if seqs:
                withdrawn[owner] = seqs
        if withdrawn:
            await self._end(withdrawn)

    async def finish(self) -> None:
        """Forget the triggers of which the scan of all queues has found no entry.

        Raises:
            redis.RedisError: Redis is unavailable or rejects a command.
        """
        for campaign, seqs in self._seqs_by_campaign.items():
            await self._queues.drop_release_seqs(campaign, [seq for seq in seqs if seq not in self._found])
        _metrics.BEYOND_RECALL.clear()
        for campaign, count in self._in_flight.most_common(MAX_CAMPAIGNS):
            _metrics.BEYOND_RECALL.labels(campaign).set(count)
        await self._queues.drop_windows([seq for seq in self._closed_seqs if seq not in self._found])

    async def _end(self, withdrawn: Mapping[str, Sequence[int]]) -> None:
        """End these entries, given as owner → seqs, with the outcome `withdrawn` and their numbers of attempts."""
        batch, now_ms = self._queues.batch(), wall_clock_ms()
        for owner, seqs in withdrawn.items():
            batch.call(("HMGET", keys.attempts(owner), *seqs), list)
        attempts_replies = await batch.run(tolerant=True)
        for (owner, seqs), reply in zip(withdrawn.items(), attempts_replies, strict=True):
            attempts_of_seqs = [None] * len(seqs) if is_corrupt(reply) else reply
            records: list[OutcomeRecord] = []
            for seq, raw_attempts in zip(seqs, attempts_of_seqs, strict=True):
                attempts = int(raw_attempts or 0)  # missing if the entry was never published
                reason = self._reason_by_seq[seq]
                records.append(OutcomeRecord(owner, seq, Outcome.WITHDRAWN, now_ms, attempts=attempts, reason=reason))
            batch.add(owner, End(tuple(records), claim=False), now_ms)
        for seqs, reply in zip(withdrawn.values(), await batch.run(tolerant=True), strict=True):
            self._found.update(seqs)
            if not is_corrupt(reply):
                _metrics.OUTCOMES.labels(Outcome.WITHDRAWN.value).inc(reply.outcomes.count(Outcome.WITHDRAWN))


def _identity(reply: Any) -> Any:
    return reply
