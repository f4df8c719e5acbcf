"""Parked entries: notes say which entries wait for which data, and the entries are pending again when their data arrives."""

from collections.abc import Sequence

from manifold.contracts import keys
from manifold.queues._batch import FIRST, LAST
from manifold.queues._corrupt_keys import is_corrupt
from manifold.queues._notifications import WakeStreams
from manifold.queues._streams import texts
from manifold.queues.verbs.fills import Unpark

NOTE_BATCH_SIZE = 1000


class WaitingForData(WakeStreams):
    """Queues the parked entries of a data_id. A note of the data_id names the owner and the seq of one parked entry.

    A note that an earlier version wrote names only an owner, and stands for all parked entries of that owner.

    Raises:
        redis.RedisError: from every method, if Redis is unavailable or rejects a command.
    """

    async def unpark_waiting(self, data_id: str, now_ms: int) -> int:
        """Queue the entries that waited for this data; returns their number. After a crash, the next call queues the rest."""
        key = keys.waiting_for(data_id)
        cursor = unparked = 0
        while True:
            cursor, notes = await self.redis.sscan(key, cursor, count=NOTE_BATCH_SIZE)
            unparked += await self._unpark(key, texts(notes), now_ms)
            if cursor == 0:
                break
        # `Park` writes its note before and after parking. So a note that is written concurrently either exists here, or adds the
        # data_id to PARKED again.
        batch = self.batch()
        batch.call(("ZREM", keys.PARKED, data_id), int, stage=FIRST)
        batch.call(("EXISTS", key), int, stage=LAST)
        _, has_notes = await batch.run()
        if has_notes:
            await self.redis.zadd(keys.PARKED, {data_id: now_ms})
        return unparked

    async def waiting_data_ids(self, now_ms: int) -> list[str]:
        """Read the data_ids for which entries were parked within the retention, and forget the others."""
        await self.redis.zremrangebyscore(keys.PARKED, "-inf", now_ms - self.policy.retention_ms)
        return texts(await self.redis.zrange(keys.PARKED, 0, -1))

    async def _unpark(self, key: str, notes: list[str], now_ms: int) -> int:
        """Queue the parked entries of `notes`, wake their queues, and remove the notes; returns the number of queued entries."""
        if not notes:
            return 0
        seqs_by_owner: dict[str, list[str]] = {}
        owners_without_seq: set[str] = set()  # named by a note of an earlier version, which stands for all their parked entries
        for note in notes:
            owner, _, seq = note.partition(" ")  # names contain no spaces
            seqs = seqs_by_owner.setdefault(owner, [])
            if seq:
                seqs.append(seq)
            else:
                owners_without_seq.add(owner)
        batch = self.batch()
        for owner, seqs in seqs_by_owner.items():
            seqs_to_unpark: Sequence[str] = () if owner in owners_without_seq else seqs  # without seqs, `Unpark` takes all
            batch.add(owner, Unpark(seqs_to_unpark), now_ms)
        owners_and_replies = zip(seqs_by_owner, await batch.run(tolerant=True), strict=True)
        replies = {owner: reply for owner, reply in owners_and_replies if not is_corrupt(reply)}
        await self.wake([owner for owner, reply in replies.items() if reply.word == "ready"])
        await self._remove_notes(key, notes, {owner: seqs for owner, seqs in seqs_by_owner.items() if seqs})
        return sum(reply.queued for reply in replies.values())

    async def _remove_notes(self, key: str, notes: list[str], seqs_by_owner: dict[str, list[str]]) -> None:
        """Remove the notes, and write again those of entries that have been parked again meanwhile.

        Call it after the wake, so that after a crash, unparking and wake are repeated.
        """
        batch = self.batch()
        batch.call(("SREM", key, *notes), int, stage=FIRST)
        for owner, seqs in seqs_by_owner.items():
            batch.call(("ZMSCORE", keys.parked(owner), *seqs), list)
        _, *scores_by_owner = await batch.run(tolerant=True)
        restored: list[str] = []
        for (owner, seqs), scores in zip(seqs_by_owner.items(), scores_by_owner, strict=True):
            if not is_corrupt(scores):
                restored += [f"{owner} {seq}" for seq, score in zip(seqs, scores, strict=True) if score is not None]
        if restored:
            batch.call(("SADD", key, *restored), int)
            batch.call(("PEXPIRE", key, self.policy.retention_ms), int)
            await batch.run()
