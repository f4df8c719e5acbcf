"""Proves promises 1 to 3 of docs/concepts.md on a history, vehicle by vehicle. Pure.

Definitions. An *entry* is a vehicle and a seq. A vehicle on MQTT 3.1.1 sees no seq: then the request identifies it, since a
request has one seq.

- attempted: (vehicle, request) that the platform has published, with or without a receipt.
- accepted: entries named by a receipt.
- delivered: accepted entries that reached the vehicle's application at least once.
- lost: accepted entries never delivered and without another outcome, such as `superseded` or `withdrawn`.
- duplicated: every further copy of an entry, from any sender. It is *explained* by a fault of the platform, or a beginning or end
  of the vehicle's own connection, between the previous copy and itself, or at most `NEAR_S` before the former; or by an expired
  deadline: the vehicle did not acknowledge the previous copy within the deadline of a first attempt, counted from its publish.
- unexplained: duplicated and not explained. Promise 2 allows none.
- out of order: entries first delivered after a younger one, except those that were ever parked.
- in flight together: entries first delivered while another entry had been delivered, not acknowledged by the vehicle, not ended
  and not parked; except one that was parked before and took its place again after the other's connection.
- resurrected: entries put in flight, or delivered without the broker's DUP more than `LATE_S` later, after their end was in
  Redis; except if Redis was wiped within `DRAIN_S` of that end, before the recorder can have had it, or was rolled back to before
  that end, until the ended entries have ended there again and the fault is over: then it is a duplicate.
- unasked: copies that the platform never attempted for that vehicle, or under another seq than the receipt's.
- altered: copies with other bytes than the platform published.
- queued twice: requests of one vehicle under more than one seq, by receipts, queues or deliveries.
- unrecorded: entries that the vehicle acknowledged without an outcome in the archive (only if the archive was read).
- never acknowledged: entries recorded as `delivered` that the vehicle has never acknowledged.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable

from manifold.contracts.outcomes import Outcome
from manifold.contracts.queue_names import is_ecq
from tests.faults.campaign_checker import check_campaign, rate_of, without_campaigns
from tests.faults.ecq_checker import DRAIN_S, LATE_S, NEAR_S, check_queue
from tests.faults.history import Line, What
from tests.faults.verdict import Breach, Verdict

WIPED = "Redis lost"  # the prefix of notes on faults in which Redis loses data
WENT_BACK = "Redis went back"  # the prefix of notes on faults after which Redis is as it was when the fault began


def check(lines: Iterable[Line], *, deadline_s: float = 30.0) -> Verdict:
    """Check a whole history, with lines in any order; `deadline_s` is the deadline of a first attempt."""
    verdict = Verdict()
    ordered, campaigns = without_campaigns(sorted(lines, key=lambda line: line.at))
    for own in campaigns.values():
        check_campaign(own, verdict, per_minute=rate_of(own))
    seqs = _seqs_of_requests(ordered, verdict)
    faults = [line for line in ordered if line.what is What.FAULT]
    archive_was_read = any(line.what is What.RECORDED for line in ordered)
    by_vin: dict[str, list[Line]] = defaultdict(list)
    for line in ordered:
        if line.vin:
            by_vin[line.vin].append(line)
    for vin, own in by_vin.items():
        if is_ecq(vin):
            check_queue(vin, own, faults, verdict)
            continue
        _Vehicle(vin, own, faults, seqs, deadline_s, verdict).judge(archive_was_read)
    return verdict


def _seqs_of_requests(lines: list[Line], verdict: Verdict) -> dict[tuple[str, str], int]:
    """(vehicle, request) → seq: from its receipt, or from a line that names both."""
    found: dict[tuple[str, str], set[int]] = defaultdict(set)
    by_receipt: dict[tuple[str, str], int] = {}
    for line in lines:
        if line.vin and line.request and line.seq is not None and not is_ecq(line.vin):
            found[line.vin, line.request].add(line.seq)
            if line.what is What.ACCEPTED:
                by_receipt.setdefault((line.vin, line.request), line.seq)
    verdict.breach(Breach.QUEUED_TWICE, [(vin, max(seqs)) for (vin, _), seqs in found.items() if len(seqs) > 1])
    return {key: by_receipt.get(key, min(seqs)) for key, seqs in found.items()}


class _Vehicle:
    """One vehicle's part of a history, read once from begin to end."""

    def __init__(
        self,
        vin: str,
        lines: list[Line],
        faults: list[Line],
        seqs: dict[tuple[str, str], int],
        deadline_s: float,
        verdict: Verdict,
    ) -> None:
        self._vin, self._lines, self._faults, self._seqs = vin, lines, faults, seqs
        self._deadline_s, self._verdict = deadline_s, verdict
        self._attempted: dict[str, str] = {}  # request → SHA-1 of its payload
        self._accepted: set[int] = set()
        self._copies: dict[int, list[Line]] = {}
        self._claimed: dict[int, list[float]] = {}  # seq → publish times of its copies
        self._acknowledged: dict[int, list[float]] = {}  # seq → when
        self._published: dict[int, float] = {}  # seq → last publish time
        self._parked: set[int] = set()
        self._ended: dict[int, float] = {}
        self._other_ends: set[int] = set()
        self._recorded: dict[int, str] = {}
        self._youngest = 0  # the highest seq delivered
        self._turns: list[float] = []  # times at which its connection began or ended
        self._wipes = [fault.at for fault in faults if fault.note.startswith(WIPED)]
        self._went_back = [(f.at - 1, (f.until or f.at) + NEAR_S) for f in faults if f.note.startswith(WENT_BACK)]

    def judge(self, archive_was_read: bool) -> None:
        """Add this vehicle's part to the verdict."""
        for line in self._lines:
            seq = line.seq if line.seq is not None else self._seqs.get((self._vin, line.request))
            self._take(line, seq)
        verdict, delivered = self._verdict, self._copies.keys()
        verdict.attempted += len(self._attempted)
        verdict.accepted += len(self._accepted)
        verdict.delivered += len(self._accepted & delivered)
        self._breach(Breach.LOST, self._accepted - delivered - self._other_ends)
        as_delivered = {seq for seq, how in self._recorded.items() if how == Outcome.DELIVERED}
        self._breach(Breach.NEVER_ACKNOWLEDGED, as_delivered - self._acknowledged.keys())
        if archive_was_read:
            self._breach(Breach.UNRECORDED, (self._acknowledged.keys() & self._accepted) - self._recorded.keys())

    def _take(self, line: Line, seq: int | None) -> None:
        if line.what is What.ATTEMPTED:
            self._attempted[line.request] = line.sha1
        elif line.what in (What.GONE, What.CAME):
            self._turns.append(line.at)
        elif line.what is What.DELIVERED:
            self._deliver(line, seq)
        elif seq is not None:
            self._note(line, seq)

    def _note(self, line: Line, seq: int) -> None:
        match line.what:
            case What.ACCEPTED:
                self._accepted.add(seq)
            case What.PARKED:
                self._parked.add(seq)
            case What.ACKNOWLEDGED:
                self._acknowledged.setdefault(seq, []).append(line.at)
            case What.PUBLISHED:
                self._published[seq] = line.at
                if seq in self._ended and not self._forgotten(self._ended[seq], line.at):
                    self._resurrect(seq)
            case What.ENDED:
                self._ended.setdefault(seq, line.at)
            case What.RECORDED:
                self._recorded[seq] = line.note
        if line.what in (What.ENDED, What.RECORDED) and line.note != Outcome.DELIVERED:
            self._other_ends.add(seq)

    def _deliver(self, line: Line, seq: int | None) -> None:
        known = self._seqs.get((self._vin, line.request))
        if line.request not in self._attempted or seq != known:
            self._breach(Breach.UNASKED, [seq or 0])
            return
        if seq is None:  # on 3.1.1, before the receipt
            return
        if line.sha1 != self._attempted[line.request]:
            self._breach(Breach.ALTERED, [seq])
        if before := self._copies.get(seq):
            self._repeat(line, seq, before[-1])
        else:
            self._first(seq)
        self._copies.setdefault(seq, []).append(line)
        published = self._published.get(seq, line.at)
        recently = line.at - published < self._deadline_s
        self._claimed.setdefault(seq, []).append(published if recently else line.at)

    def _first(self, seq: int) -> None:
        if seq < self._youngest and seq not in self._parked:
            self._breach(Breach.OUT_OF_ORDER, [seq])
        self._youngest = max(self._youngest, seq)
        if any(self._is_open(other) and not self._gave_way(other, seq) for other in self._copies):
            self._breach(Breach.IN_FLIGHT_TOGETHER, [seq])

    def _is_open(self, seq: int) -> bool:
        return seq not in self._acknowledged and seq not in self._ended and seq not in self._parked

    def _gave_way(self, seq: int, to: int) -> bool:
        """Whether the session that held `seq` may have ended, so that `to`, which is older and was parked, came before it."""
        return to in self._parked and any(turn >= self._claimed[seq][-1] for turn in self._turns)

    def _repeat(self, line: Line, seq: int, before: Line) -> None:
        self._verdict.duplicated += 1
        overdue = not line.dup and self._overdue(before, seq, line.at)
        if not overdue and not self._explained(before.at, line.at):
            self._breach(Breach.UNEXPLAINED, [seq])
        ended = self._ended.get(seq)
        if ended is not None and not line.dup and line.at > ended + LATE_S and not self._forgotten(ended, line.at):
            self._resurrect(seq)

    def _overdue(self, copy: Line, seq: int, at: float) -> bool:
        """Whether the deadline of that copy's publish passed before `at` and before the vehicle acknowledged it."""
        deadline = self._claimed[seq][-1] + self._deadline_s
        return deadline <= at and not any(copy.at <= ack < deadline for ack in self._acknowledged.get(seq, ()))

    def _explained(self, since: float, at: float) -> bool:
        """Whether a fault lies between the two copies, or shortly before the first."""
        since -= NEAR_S
        place = bisect_left(self._turns, since)
        if place < len(self._turns) and self._turns[place] <= at:
            return True
        return any(fault.at <= at and (fault.until or fault.at) >= since for fault in self._faults)

    def _forgotten(self, ended: float, at: float) -> bool:
        """Whether Redis may not know at `at` that an entry had `ended`."""
        wiped = any(ended - 1 <= wipe <= ended + DRAIN_S for wipe in self._wipes)
        return wiped or any(since <= ended <= at <= until for since, until in self._went_back)

    def _resurrect(self, seq: int) -> None:
        if (self._vin, seq) not in self._verdict.broken.get(Breach.RESURRECTED, ()):
            self._breach(Breach.RESURRECTED, [seq])

    def _breach(self, how: Breach, seqs: Iterable[int]) -> None:
        self._verdict.breach(how, [(self._vin, seq) for seq in sorted(seqs)])
