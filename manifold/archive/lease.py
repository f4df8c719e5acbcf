"""The lease of a recorder number: while one process holds it, no other assigns seqs with that number. No clock is trusted.

A holder writes into its claim the millisecond up to which it will assign seqs, then checks whether another process has claimed
the number since, and only then assigns them. A process that takes the number over first writes its own claim, then reads the
former holder's, and begins after it. Under any delay, at least one process sees the other's claim: the newcomer begins later, or
the holder stops.
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

RANGE_MS = 30_000  # span of seqs claimed ahead
RENEWALS = 3  # per range
RETRY_S = 1.0

log = structlog.get_logger(__name__)
Unavailable = Mapping[Store, Retryable]


class Lease:
    """The lease of one recorder number.

    `archive` must be available when a folder takes a number for the first time; `others` may be unavailable, unless the number is
    held. A holder that reaches one of the stores continues. One that reaches none continues until its last claim expires.
    `what` names another role that only one process may have, and that assigns no seqs; `node` is not used then.
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
        what: str = "",
    ) -> None:
        self.problem: str | None = None
        self.lost: str | None = None  # set when another process has the number: this one must end
        self._node, self._place, self._archive, self._stores = node, place, archive, [archive, *others]
        self._lease_ms = round(lease_s * 1000)
        self._range_ms = min(RANGE_MS, self._lease_ms)
        self._epoch = self._after_ms = self._until_ms = 0  # of the last claim that a store accepted
        self._clock_ms, self._what = clock_ms, what
        self._archive_has_claim = False  # whether the archive has the latest claim
        self._seqs = SeqSource(node, clock_ms=clock_ms)
        self._renewing = asyncio.Lock()

    @property
    def epoch(self) -> int:
        """The number of this claim, greater than those of all former holders; 0: nothing was claimed yet."""
        return self._epoch

    async def take(self, last_seq: int) -> SeqSource:
        """Acquire the lease; returns a source of seqs after `last_seq`, this process's own last one, and former holders' seqs.

        Waits for a required store that is unavailable; `problem` names it.

        Raises:
            Permanent: another process holds the number.
        """
        while True:
            try:
                self._seqs = await self._take(last_seq)
            except Retryable as exc:
                self._set_problem(f"{self._what or f'node={self._node}'} is not leased, so nothing is taken: {exc}")
                await asyncio.sleep(RETRY_S)
            else:
                return self._seqs

    async def wait_until_held(self) -> None:
        """Wait until a seq may be assigned. Never returns once the lease is lost."""
        while self.lost is not None or max(self._clock_ms(), self._seqs.at_ms) >= self._seqs.until_ms:
            if self.lost is None:
                await self._renew()
            if self.lost is not None or max(self._clock_ms(), self._seqs.at_ms) >= self._seqs.until_ms:
                await asyncio.sleep(RETRY_S)

    async def renew_until_lost(self) -> None:
        """Renew until the lease is lost, or until cancelled."""
        while self.lost is None:
            await asyncio.sleep(self._range_ms / RENEWALS / 1000)
            await self._renew()

    async def release(self) -> None:
        """Record the last seq, so that the next holder need not wait. Afterwards no seq is assigned.

        Call this once `renew_until_lost` has ended. If the archive is unavailable, the number is kept: this folder can
        then continue without asking.
        """
        self._seqs.until_ms = self._seqs.at_ms - 1
        if self._archive_has_claim:
            self._place.forget()
            await self._exchange_claims(self._claim(self._seqs.at_ms, released=True))

    async def _take(self, last_seq: int) -> SeqSource:
        """Read all claims, claim the number with the next epoch, and read again.

        Refuses if another journal's claim still runs; waits for the claims of other rivals to expire. If another process claimed
        in the meantime, withdraws.
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
            if other.epoch >= self._epoch or other not in claims:
                # Otherwise a restart that reaches no store would assign seqs that the other process takes to be free.
                self._place.forget()
                await self._exchange_claims(self._claim(self._after_ms, released=True))
                raise Permanent(self._holder_message(other))
        after = last_seq if self._after_ms == last_ms else seq_of(self._after_ms, self._node, MAX_COUNTER)
        seqs = SeqSource(self._node, after=after, clock_ms=self._clock_ms)
        self._grant(seqs, claim, unavailable)
        for former in {each.name: each for each in claims if each.name != claim.name}.values():
            await self._forget(former)
        return seqs

    def _refuse_if_unavailable(self, unavailable: Unavailable, rivals: Sequence[Claim]) -> None:
        """Raise Retryable if an unavailable store may hold a claim."""
        held_lately = self._clock_ms() < self._place.last_held_ms + self._lease_ms
        if unavailable and (rivals or (self._archive in unavailable and not held_lately)):
            raise Retryable(_reasons(unavailable))

    async def _await_expiry(self, rivals: Sequence[Claim]) -> None:
        """Wait until the former holders' claims are over, and check that none was renewed. Clocks differ: one range is enough."""
        left_ms = max(rival.upto_ms for rival in rivals) + 1 - self._clock_ms()
        await asyncio.sleep(max(0, min(left_ms, self._range_ms)) / 1000)
        found, unavailable = await self._exchange_claims()
        self._refuse_if_unavailable(unavailable, rivals)
        for other in self._foreign(found):
            if other.released and other not in rivals:
                raise Retryable("its holder has just ended")
            if other in self._rivals(found) and other not in rivals:
                raise Permanent(self._holder_message(other))

    async def _renew(self) -> None:
        async with self._renewing:
            claim = self._claim(max(self._clock_ms(), self._seqs.at_ms) + self._range_ms)
            found, unavailable = await self._exchange_claims(claim)
            newer = [other for other in self._foreign(found) if other.epoch > self._epoch]
            if newer:
                self.lost, self._archive_has_claim = self._holder_message(newer[0]), True
                self._set_problem(self.lost)
            else:
                self._grant(self._seqs, claim, unavailable)

    def _grant(self, seqs: SeqSource, claim: Claim, unavailable: Unavailable) -> None:
        """Permit the seqs of `claim`: no store that answered has a later claim of another process."""
        if len(unavailable) < len(self._stores):
            self._until_ms = claim.until_ms
            self._place.mark_held(claim.until_ms - self._lease_ms, claim.epoch, claim.after_ms)
            self._set_problem(None)
        else:
            self._until_ms = self._until_ms or self._place.last_held_ms + self._lease_ms
            self._set_problem(
                f"the lease of node={self._node} cannot be renewed and ends {_instant(self._until_ms)}: {_reasons(unavailable)}"
            )
        self._archive_has_claim = self._archive not in unavailable
        seqs.until_ms = min(claim.upto_ms, self._until_ms)
        _metrics.LEASE_RENEWED.set(len(unavailable) < len(self._stores))

    def _claim(self, upto_ms: int, *, released: bool = False) -> Claim:
        where = f"process {os.getpid()} on {socket.gethostname()}, journal {self._place.folder}"
        until_ms = upto_ms if released else max(upto_ms, self._clock_ms() + self._lease_ms)
        return Claim(self._place.name, self._place.journal, where, self._epoch, self._after_ms, upto_ms, until_ms, released)

    def _rivals(self, found: Iterable[Claim]) -> list[Claim]:
        """The possible holders: the claims with the greatest epoch that are neither released nor made here."""
        epoch = max((claim.epoch for claim in found), default=0)
        return [claim for claim in self._foreign(found) if claim.epoch == epoch and not claim.released]

    def _foreign(self, found: Iterable[Claim]) -> list[Claim]:
        return [claim for claim in found if claim.place != self._place.name]

    def _last_ms(self, claim: Claim, rivals: Sequence[Claim]) -> int:
        """The last millisecond for which others may have assigned seqs, as far as `claim` shows."""
        if claim.place == self._place.name:
            return claim.after_ms  # later seqs of this folder are in the journal
        return claim.until_ms if claim in rivals and claim.journal != self._place.journal else claim.upto_ms

    async def _exchange_claims(self, claim: Claim | None = None) -> tuple[list[Claim], Unavailable]:
        """Write `claim` to every store, if given, and read all claims; also returns the errors of unavailable stores."""

        async def ask(store: Store) -> list[Claim] | Retryable:
            try:
                if claim is not None:
                    await store.put(claim)
                return await store.claims()
            except Retryable as exc:
                return exc

        answers = await asyncio.gather(*map(ask, self._stores))
        found = [known for answer in answers if isinstance(answer, list) for known in answer]
        return found, {
            store: answer for store, answer in zip(self._stores, answers, strict=True) if isinstance(answer, Retryable)
        }

    async def _forget(self, former: Claim) -> None:
        for store in self._stores:
            try:
                await store.remove(former)
            except Retryable as exc:
                log.debug("earlier claim to the lease not removed", claim=former.name, holder=former.where, reason=str(exc))

    def _holder_message(self, claim: Claim) -> str:
        if self._what:
            return f"{self._what} is {claim.where}; leased until {_instant(claim.until_ms)}"
        return (
            f"node={self._node} is the number of another recorder ({claim.where}; leased until {_instant(claim.until_ms)}): "
            "give each recorder a node of its own"
        )

    def _set_problem(self, problem: str | None) -> None:
        """Note what is wrong with the lease, or None; log a new problem."""
        if problem != self.problem and problem is not None:
            log.warning("lease degraded", lease=self._what or f"recorder {self._node}", reason=problem)
        self.problem = problem


def _reasons(unavailable: Unavailable) -> str:
    return "; ".join(str(answer) for answer in unavailable.values())


def _instant(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="seconds")
