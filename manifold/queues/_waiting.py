"""Parked entries: which entries wait for which data, and how they are queued when it arrives."""

from manifold.contracts import keys
from manifold.queues._batch import FIRST, LAST
from manifold.queues._corrupt_keys import is_corrupt
from manifold.queues._notifications import WakeStreams
from manifold.queues._streams import texts
from manifold.queues.verbs.fills import Unpark

NOTE_BATCH_SIZE = 1000


class WaitingForData(WakeStreams):
    """A note names an owner and a seq. A note of an earlier version names only an owner and means all its parked entries.

    Raises:
        redis.RedisError: from every method, if Redis is unavailable or rejects a command.
    """

    async def unpark_waiting(self, data_id: str, now_ms: int) -> int:
        """Queue the entries that waited for this data; returns their number. After a crash, the next call finds the rest."""
        key, cursor, unparked = keys.waiting_for(data_id), 0, 0
        while True:
            cursor, notes = await self.redis.sscan(key, cursor, count=NOTE_BATCH_SIZE)
            unparked += await self._unpark(key, texts(notes), now_ms)
            if cursor == 0:
                break
        # `Park` writes its note before and after parking, so a concurrent one is either found here or adds the id again.
        batch = self.batch()
        batch.call(("ZREM", keys.PARKED, data_id), int, stage=FIRST)
        batch.call(("EXISTS", key), int, stage=LAST)
        if (await batch.run())[-1]:
            await self.redis.zadd(keys.PARKED, {data_id: now_ms})
        return unparked

    async def waiting_data_ids(self, now_ms: int) -> list[str]:
        """The data_ids for which entries were parked within the retention."""
        await self.redis.zremrangebyscore(keys.PARKED, "-inf", now_ms - self.policy.retention_ms)
        return texts(await self.redis.zrange(keys.PARKED, 0, -1))

    async def _unpark(self, key: str, notes: list[str], now_ms: int) -> int:
        """Return the parked entries of `notes` to their queues, wake these queues, remove the notes; return the number queued."""
        if not notes:
            return 0
        entries: dict[str, list[str]] = {}
        for note in notes:
            owner, _, seq = note.partition(" ")  # names contain no spaces
            entries.setdefault(owner, []).extend([seq] if seq else ())
        whole = {note for note in notes if " " not in note}  # owners of whom all parked entries are meant
        batch = self.batch()
        for owner, seqs in entries.items():
            batch.add(owner, Unpark(() if owner in whole else seqs), now_ms)
        found = zip(entries, await batch.run(tolerant=True), strict=True)
        replies = {owner: reply for owner, reply in found if not is_corrupt(reply)}
        await self.wake([owner for owner, reply in replies.items() if reply.word == "ready"])
        await self._remove_notes(key, notes, {owner: seqs for owner, seqs in entries.items() if seqs})
        return sum(reply.queued for reply in replies.values())

    async def _remove_notes(self, key: str, notes: list[str], entries: dict[str, list[str]]) -> None:
        """Remove notes after the wake, so that a crash repeats both. An entry that was parked again gets its note back."""
        batch = self.batch()
        batch.call(("SREM", key, *notes), int, stage=FIRST)
        for owner, seqs in entries.items():
            batch.call(("ZMSCORE", keys.parked(owner), *seqs), list)
        found = zip(entries.items(), (await batch.run(tolerant=True))[1:], strict=True)
        again: list[str] = []
        for (owner, seqs), scores in found:
            if not is_corrupt(scores):
                again += [f"{owner} {seq}" for seq, score in zip(seqs, scores, strict=True) if score is not None]
        if again:
            batch.call(("SADD", key, *again), int)
            batch.call(("PEXPIRE", key, self.policy.retention_ms), int)
            await batch.run()
