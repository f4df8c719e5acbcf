"""Withdraws entries of campaigns that must not be sent and whose vehicles are away: the slow walk over all queues finds them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dispatcher import _metrics
from dispatcher._brakes import OVER, braked
from manifold.contracts import keys
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.seq import wall_clock_ms
from manifold.queues import Queues, is_corrupt
from manifold.queues.verbs.ends import End

MAX_CAMPAIGNS = 50  # that metrics show


class Withdrawals:
    """What one walk withdraws: the entries of certain triggers, each for a reason.

    An entry in flight is left alone: it ends by its acknowledgement, or at its deadline by its next claim. `finish` forgets the
    triggers of which the walk has found no entry, so that later walks need not look for them.

    Triggers are given by their seqs: those of each braked campaign, those whose windows are over, and why each is withdrawn.
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
        self._found = set[int]()  # triggers of which an entry was found
        # keyed as Redis replies: the seq in ASCII
        self._campaign_of = {str(seq).encode(): campaign for campaign, seqs in seqs_by_campaign.items() for seq in seqs}
        self._published = Counter[str]()  # campaign → entries that no brake can take back

    def __bool__(self) -> bool:
        return bool(self._reason_by_seq)

    @classmethod
    async def of(cls, queues: Queues) -> "Withdrawals":
        """Read which triggers must not be sent now.

        Raises:
            redis.RedisError: Redis is unavailable or rejects a command.
        """
        known = await queues.brakes()
        closed = await queues.closed_windows(known.now_ms)
        reason_by_seq, stopped = dict.fromkeys(closed, OVER), {name: brake for name, brake in known.brakes.items() if brake.is_on}
        released = dict(zip(stopped, await queues.released(list(stopped)), strict=True))
        for campaign, seqs in released.items():
            reason_by_seq |= dict.fromkeys(seqs, braked(campaign, stopped[campaign]))
        return cls(queues, released, closed, reason_by_seq)

    async def withdraw(self, owners: Iterable[str]) -> None:
        """End the entries of these triggers that are pending or parked for these vehicles.

        Raises:
            redis.RedisError: Redis is unavailable or rejects a command.
        """
        named, batch = list(owners), self._queues.batch()
        for owner in named:
            batch.call(("ZRANGE", keys.pending(owner), 0, -1), list)
            batch.call(("ZRANGE", keys.parked(owner), 0, -1), list)
            batch.call(("HGET", keys.inflight(owner), "seq"), _identity)
        replies, ends = await batch.run(tolerant=True), dict[str, list[int]]()
        for place, owner in enumerate(named):
            pending, parked, held = replies[3 * place : 3 * place + 3]
            if any(map(is_corrupt, (pending, parked, held))):
                continue  # the walk logs corrupt keys
            if held in self._campaign_of:
                self._published[self._campaign_of[held]] += 1
                self._found.add(int(held))
            seqs = [seq for seq in map(int, (*pending, *parked)) if seq in self._reason_by_seq and str(seq).encode() != held]
            if seqs:
                ends[owner] = seqs
        if ends:
            await self._end(ends)

    async def finish(self) -> None:
        """Forget the triggers of which no entry was found by a whole walk.

        Raises:
            redis.RedisError: Redis is unavailable or rejects a command.
        """
        for campaign, seqs in self._seqs_by_campaign.items():
            await self._queues.drop_released(campaign, [seq for seq in seqs if seq not in self._found])
        _metrics.BEYOND_RECALL.clear()
        for campaign, number in self._published.most_common(MAX_CAMPAIGNS):
            _metrics.BEYOND_RECALL.labels(campaign).set(number)
        await self._queues.drop_windows([seq for seq in self._closed_seqs if seq not in self._found])

    async def _end(self, ends: Mapping[str, Sequence[int]]) -> None:
        """End these entries as withdrawn, each with its number of attempts."""
        batch, now_ms = self._queues.batch(), wall_clock_ms()
        for owner, seqs in ends.items():
            batch.call(("HMGET", keys.attempts(owner), *seqs), list)
        tries = dict(zip(ends, await batch.run(tolerant=True), strict=True))
        for owner, seqs in ends.items():
            known = [None] * len(seqs) if is_corrupt(tries[owner]) else tries[owner]
            records = (
                OutcomeRecord(owner, seq, Outcome.WITHDRAWN, now_ms, attempts=int(tried or 0), reason=self._reason_by_seq[seq])
                for seq, tried in zip(seqs, known, strict=True)
            )
            batch.add(owner, End(tuple(records), claim=False), now_ms)
        for (_, seqs), reply in zip(ends.items(), await batch.run(tolerant=True), strict=True):
            self._found.update(seqs)
            if not is_corrupt(reply):
                _metrics.OUTCOMES.labels(Outcome.WITHDRAWN.value).inc(reply.outcomes.count(Outcome.WITHDRAWN))


def _identity(reply: Any) -> Any:
    return reply
