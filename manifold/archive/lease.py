"""The lease of a recorder number: while a process holds it, no other process assigns seqs with that number.

This does not depend on correct clocks. The holder writes into its claim the millisecond up to which it will assign seqs, then
reads all claims, and assigns these seqs only if no other process has claimed the number. A process that takes over the number
writes its own claim first, then reads all claims, and assigns only seqs after those in the claim of the former holder.

So whatever the delays, at least one of the two processes sees the claim of the other: the new process begins after the claim of
the former holder, or the former holder stops.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime

import structlog

from manifold.archive import _metrics
from manifold.archive.claims import Claim, Store
from manifold.archive.journal_folder import JournalFolder
from manifold.contracts.errors import Permanent, Retryable
from manifold.contracts.seq import EPOCH_MS, MAX_COUNTER, SeqSource, seq_of, unix_ms_of, wall_clock_ms

RANGE_MS = 30_000  # a claim covers the seqs of this many ms from now
RENEWALS_PER_RANGE = 3
RETRY_S = 1.0

log = structlog.get_logger(__name__)
Unavailable = Mapping[Store, Retryable]


class Lease:
    """The lease of a recorder number, or of another role that only one process may have.

    To take the lease, the archive must be available, unless this folder held the lease less than `lease_s` ago. If another
    process may hold it, all stores must be available. A holder keeps the lease while any store is available. If no store is
    available, it keeps the lease until its last claim expires.

    Args:
        node: the recorder number.
        place: the locked journal folder of this process.
        archive: the claims in the archive.
        others: the claims in other stores.
        lease_s: how long the holder may continue while no store is available, in seconds.
        clock_ms: the clock, in Unix ms.
        role: the name of the role, if the lease is not about a recorder number. Then, `node` is unused and no seqs are assigned.
    """

    def __init__(
        self,
        node: int,
        place: JournalFolder,
        archive: Store,
        others: Sequence[Store],
        *,
        lease_s: float,
        clock_ms: Callable[[], int] = wall_clock_ms,
        role: str = "",
    ) -> None:
        self.problem: str | None = None  # why the lease cannot be taken or renewed
        self.lost: str | None = None  # the message about another process that has taken the lease; this process must then end
        self._node = node
        self._place = place
        self._archive = archive
        self._stores = [archive, *others]
        self._lease_ms = round(lease_s * 1000)
        self._range_ms = min(RANGE_MS, self._lease_ms)
        self._epoch, self._after_ms = 0, 0  # of this process's newest claim
        self._until_ms = 0  # of this process's last claim that a store has accepted; 0: none yet
        self._clock_ms = clock_ms
        self._role = role
        self._subject = role or f"node={node}"
        self._archive_has_claim = False  # whether the archive has the newest claim of this process
        self._seqs = SeqSource(node, clock_ms=clock_ms)
        self._renewing = asyncio.Lock()

    @property
    def epoch(self) -> int:
        """The epoch of this process's claim, which is greater than that of every former holder; 0 before the first claim."""
        return self._epoch

    async def take(self, last_seq: int) -> SeqSource:
        """Take the lease, and return a source of seqs.

        The source begins after `last_seq`, the last seq that was assigned in this folder, and after the seqs of former holders.
        If a required store is unavailable, this waits until it is available; meanwhile, `problem` names the store.

        Raises:
            Permanent: another process holds the lease.
        """
        while True:
            try:
                self._seqs = await self._take(last_seq)
            except Retryable as exc:
                self._set_problem(f"{self._subject} is not leased, so this process waits: {exc}")
                await asyncio.sleep(RETRY_S)
            else:
                return self._seqs

    async def wait_until_held(self) -> None:
        """Wait until the lease permits the next seq, and renew it if necessary. If the lease is lost, this never returns."""
        while not self._permits_next_seq():
            if self.lost is None:
                await self._renew()
            if not self._permits_next_seq():
                await asyncio.sleep(RETRY_S)

    def _permits_next_seq(self) -> bool:
        return self.lost is None and max(self._clock_ms(), self._seqs.at_ms) < self._seqs.until_ms

    async def renew_until_lost(self) -> None:
        """Renew the lease periodically until it is lost."""
        while self.lost is None:
            await asyncio.sleep(self._range_ms / RENEWALS_PER_RANGE / 1000)
            await self._renew()

    async def release(self) -> None:
        """Release the lease, so that the next holder need not wait. Afterwards, no seq is assigned.

        Call this after `renew_until_lost` has ended. A process in a folder whose lease was released must ask the stores. So if
        the archive was unavailable for the newest claim, the lease is kept, and the next process here can start without it.
        """
        self._seqs.until_ms = self._seqs.at_ms - 1
        if self._archive_has_claim:
            await self._withdraw(self._seqs.at_ms)

    async def _take(self, last_seq: int) -> SeqSource:
        """Read all claims, claim the lease with the next epoch, and read all claims again.

        If the claim of another journal has not expired, `Permanent` is raised. If the claim of a copy of this journal has not
        expired, this waits until it has. If another process has claimed the lease between the two reads, this claim is withdrawn.
        """
        claims, unavailable = await self._exchange_claims()
        rivals = self._rivals(claims)
        for rival in rivals:
            if rival.journal != self._place.journal and self._clock_ms() <= rival.until_ms:
                raise Permanent(self._holder_message(rival))
        self._refuse_if_unavailable(unavailable, rivals)
        if rivals:
            await self._await_expiry(rivals)
        last_ms = unix_ms_of(last_seq) if last_seq else EPOCH_MS
        self._after_ms = max([last_ms, self._place.after_ms, *(self._last_ms(claim, rivals) for claim in claims)])
        self._epoch = max([self._place.epoch, *(claim.epoch for claim in claims)]) + 1
        claim = self._claim(max(self._clock_ms(), self._after_ms) + self._range_ms)
        claims_after, unavailable = await self._exchange_claims(claim)
        self._refuse_if_unavailable(unavailable, rivals)
        for other in self._foreign(claims_after):
            if other.epoch >= self._epoch or other not in claims:  # written or renewed since the first read
                await self._withdraw(self._after_ms)
                raise Permanent(self._holder_message(other))
        after = last_seq if self._after_ms == last_ms else seq_of(self._after_ms, self._node, MAX_COUNTER)
        seqs = SeqSource(self._node, after=after, clock_ms=self._clock_ms)
        self._grant(seqs, claim, unavailable)
        former_claims = {former.name: former for former in claims if former.name != claim.name}
        for former in former_claims.values():
            await self._remove(former)
        return seqs

    async def _withdraw(self, last_ms: int) -> None:
        """Release this process's claim, of which `last_ms` is the last millisecond with a seq.

        Without the mark in the folder, a restart without any store would assign seqs of this claim, as the next holder may.
        """
        self._place.mark_released()
        await self._exchange_claims(self._claim(last_ms, released=True))

    def _refuse_if_unavailable(self, unavailable: Unavailable, rivals: Sequence[Claim]) -> None:
        """Raise `Retryable` if a required store (see `Lease`) is unavailable, because it may have claims that were not read."""
        was_held_recently = self._clock_ms() < self._place.last_held_ms + self._lease_ms
        needs_archive = self._archive in unavailable and not was_held_recently
        if unavailable and (rivals or needs_archive):
            raise Retryable(_reasons(unavailable))

    async def _await_expiry(self, rivals: Sequence[Claim]) -> None:
        """Wait until the claims of the rivals have expired, and check that none was renewed.

        A rival's clock may be ahead, so a claim may seem to expire much later than it does. The wait is therefore limited to the
        duration of a claim: within that time, a rival that still runs renews its claim.
        """
        remaining_ms = max(rival.upto_ms for rival in rivals) + 1 - self._clock_ms()
        await asyncio.sleep(max(0, min(remaining_ms, self._range_ms)) / 1000)
        claims, unavailable = await self._exchange_claims()
        self._refuse_if_unavailable(unavailable, rivals)
        for other in self._foreign(claims):
            if other.released and other not in rivals:  # `take` tries again, and begins after the seqs of this released claim
                raise Retryable("its holder has just ended")
            if other in self._rivals(claims) and other not in rivals:  # a renewed claim is another value
                raise Permanent(self._holder_message(other))

    async def _renew(self) -> None:
        """Extend the claim to one range from now; set `lost` if another process has claimed the lease."""
        async with self._renewing:
            claim = self._claim(max(self._clock_ms(), self._seqs.at_ms) + self._range_ms)
            claims, unavailable = await self._exchange_claims(claim)
            newer = [other for other in self._foreign(claims) if other.epoch > self._epoch]
            if newer:
                self.lost = self._holder_message(newer[0])
                self._archive_has_claim = True  # so that `release` releases this claim in any case, because it is worthless now
                self._set_problem(self.lost)
            else:
                self._grant(self._seqs, claim, unavailable)

    def _grant(self, seqs: SeqSource, claim: Claim, unavailable: Unavailable) -> None:
        """Permit the seqs that `claim` covers. No available store has a newer claim of another process.

        If no store is available, only seqs up to the expiry of the last accepted claim are permitted.
        """
        is_renewed = len(unavailable) < len(self._stores)
        if is_renewed:
            self._until_ms = claim.until_ms
            self._place.mark_held(claim.until_ms - self._lease_ms, claim.epoch, claim.after_ms)
            self._set_problem(None)
        else:
            if self._until_ms == 0:  # only the last process in this folder had a claim accepted
                self._until_ms = self._place.last_held_ms + self._lease_ms
            self._set_problem(
                f"the lease of {self._subject} cannot be renewed and ends {_instant(self._until_ms)}: {_reasons(unavailable)}"
            )
        self._archive_has_claim = self._archive not in unavailable
        seqs.until_ms = min(claim.upto_ms, self._until_ms)
        _metrics.LEASE_RENEWED.set(is_renewed)

    def _claim(self, upto_ms: int, *, released: bool = False) -> Claim:
        """This process's claim to the seqs up to `upto_ms`."""
        where = f"process {os.getpid()} on {socket.gethostname()}, journal {self._place.folder}"
        until_ms = upto_ms if released else max(upto_ms, self._clock_ms() + self._lease_ms)
        return Claim(self._place.name, self._place.journal, where, self._epoch, self._after_ms, upto_ms, until_ms, released)

    def _rivals(self, claims: Iterable[Claim]) -> list[Claim]:
        """The claims of processes that may hold the lease: claims of other folders with the greatest epoch, not released."""
        greatest_epoch = max((claim.epoch for claim in claims), default=0)
        return [claim for claim in self._foreign(claims) if claim.epoch == greatest_epoch and not claim.released]

    def _foreign(self, claims: Iterable[Claim]) -> list[Claim]:
        """The claims of other folders."""
        return [claim for claim in claims if claim.place != self._place.name]

    def _last_ms(self, claim: Claim, rivals: Sequence[Claim]) -> int:
        """The last millisecond in which, according to `claim`, a process outside this folder may have assigned seqs."""
        if claim.place == self._place.name:
            return claim.after_ms  # the folder's seqs begin after those of every former holder, and are in its journal
        # A rival with another journal may still be running without reaching any store. It then assigns seqs until its expiry.
        may_exceed_claim = claim in rivals and claim.journal != self._place.journal
        return claim.until_ms if may_exceed_claim else claim.upto_ms

    async def _exchange_claims(self, claim: Claim | None = None) -> tuple[list[Claim], Unavailable]:
        """Write `claim`, if it is not None, to every store, then read all claims.

        Returns the claims in the available stores, and the errors of the unavailable stores.
        """

        async def exchange(store: Store) -> list[Claim] | Retryable:
            try:
                if claim is not None:
                    await store.put(claim)
                return await store.claims()
            except Retryable as exc:
                return exc

        results = await asyncio.gather(*map(exchange, self._stores))
        claims: list[Claim] = []
        unavailable: dict[Store, Retryable] = {}
        for store, result in zip(self._stores, results, strict=True):
            if isinstance(result, Retryable):
                unavailable[store] = result
            else:
                claims += result
        return claims, unavailable

    async def _remove(self, former: Claim) -> None:
        """Remove the claim of a former holder from all stores; errors are only logged."""
        for store in self._stores:
            try:
                await store.remove(former)
            except Retryable as exc:
                log.debug("former holder's claim not removed", claim=former.name, holder=former.where, reason=str(exc))

    def _holder_message(self, claim: Claim) -> str:
        """The message to an operator that another process, by `claim`, holds the lease."""
        if self._role:
            return f"{self._role} is {claim.where}; leased until {_instant(claim.until_ms)}"
        return (
            f"node={self._node} is the number of another recorder ({claim.where}; leased until {_instant(claim.until_ms)}): "
            "give each recorder a node of its own"
        )

    def _set_problem(self, problem: str | None) -> None:
        """Store what is wrong with the lease (None: nothing), and log a new problem."""
        if problem != self.problem and problem is not None:
            log.warning("lease not held or not renewed", lease=self._role or f"recorder {self._node}", reason=problem)
        self.problem = problem


def _reasons(unavailable: Unavailable) -> str:
    return "; ".join(str(error) for error in unavailable.values())


def _instant(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="seconds")
