"""The loop of the active campaigner: folds new facts, asks `step` for effects, and publishes them."""

import asyncio
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from manifold.campaigns.fold import Campaign
from manifold.campaigns.plan import Plan
from manifold.campaigns.service import _metrics
from manifold.campaigns.service._book import Book
from manifold.campaigns.service._braking import UNSURE, FoldedBrakes
from manifold.campaigns.service._campaign_metrics import CAMPAIGNS
from manifold.campaigns.service._lead import Lead
from manifold.campaigns.service._presence import Sweep
from manifold.campaigns.step import Decide, Policy, Release, candidates, step
from manifold.campaigns.wire import trigger_payload
from manifold.contracts import campaigns as r
from manifold.contracts import topics
from manifold.contracts.errors import ManifoldError, Retryable
from manifold.contracts.messages import Receipt, ReceiptStatus
from manifold.contracts.names import MAX_VIN
from manifold.contracts.seq import wall_clock_ms
from manifold.messaging.publisher import Publisher
from manifold.queues import Policy as QueuePolicy
from manifold.queues import Queues
from manifold.settings import Settings

# The MQTT client id, after the user name. All campaigners use the same one, because a broker keeps the order of the messages of a
# single client.
CLIENT_ID = "{}-active"
READ_INTERVAL_S = 0.5  # pause between two reads of the record
AWAITING_INTERVAL_S = 0.1  # the same pause while a published message is not on record yet
PAUSE_FACTOR = 4  # after a decision that took t seconds, an unchanged campaign is decided again after a pause of 4 t
REFUSED_PAUSE_S = 30.0  # pause of a campaign after one of its messages was refused
MAX_VINS = 100_000  # in one release
MAX_CLOCK_SKEW_MS = 5_000
# Decisions are made for an instant this far in the past, so that the rate also holds for messages that are delivered late.
MARGIN_MS = 1_000
_TRIGGER_OVERHEAD_BYTES = 1_000  # the size of a trigger without its VINs, at most

log = structlog.get_logger(__name__)


class _LastDecision(NamedTuple):
    """The state for which a campaign was last decided, and until when that state needs no other decision."""

    campaign: Campaign
    pause_until: float  # monotonic seconds


class Active:
    """The loop of a campaigner while it holds the lease. `problem` is the health problem until the first read of the record."""

    def __init__(self, settings: Settings, redis: Redis, lead: Lead, problem: str) -> None:
        self.problem: str | None = problem
        self.waiting: dict[str, str] = {}  # campaign → why nothing is decided about it
        self.open_campaigns = 0
        self._settings = settings
        self._lead = lead
        self._queues = Queues(redis, QueuePolicy.of(settings))
        self._book = Book(settings)
        vin_bytes = MAX_VIN + 3  # in JSON: with two quotation marks and a comma
        max_vins_by_size = max(1, (settings.max_trigger_bytes - _TRIGGER_OVERHEAD_BYTES) // vin_bytes)
        self._policy = Policy(
            by=f"{r.CAMPAIGNER}{socket.gethostname()}",
            epoch=lead.epoch,
            ack_deadline_ms=self._queues.policy.ack_deadline_ms,
            max_vins=min(MAX_VINS, settings.max_ids, max_vins_by_size),
        )
        self._awaited: dict[str, set[int]] = {}  # campaign → seqs of its published messages that are not folded yet
        self._unsure: set[str] = set()  # campaigns of which it is unknown whether a published message is on record
        self._refused_until: dict[str, float] = {}  # campaign → until when it is paused (monotonic seconds)
        self._last_decisions: dict[str, _LastDecision] = {}  # by campaign
        self._brakes = FoldedBrakes(self._queues)
        self._wake = asyncio.Event()
        self._sweep = Sweep(self._queues, self._wake)

    async def run(self) -> None:
        """Work until cancelled.

        Raises:
            Retryable: the broker does not answer.
        """
        settings = self._settings
        user = settings.mqtt_username_campaigns
        try:
            async with Publisher(settings, user, CLIENT_ID.format(user)) as publisher, asyncio.TaskGroup() as group:
                group.create_task(self._sweep.run(), name="campaigner.sweep")
                group.create_task(self._decide(publisher), name="campaigner.decide")
        finally:
            CAMPAIGNS.show((), {})
            _metrics.LEFT_ALONE.set(0)

    async def _decide(self, publisher: Publisher) -> None:
        """Decide about all campaigns, round by round. If a round fails, note why, and try again."""
        while True:
            try:
                await self._round(publisher)
            except Retryable as exc:
                self._set_problem(str(exc))
            await self._pause()

    async def _round(self, publisher: Publisher) -> None:
        """Read the record and the brakes, then decide about the oldest campaigns that need decisions.

        The setting `campaigns_open` limits their number; all further campaigns wait.
        """
        began = time.monotonic()
        await asyncio.to_thread(self._book.refresh)
        _metrics.READ_SECONDS.set(time.monotonic() - began)
        now_ms = await self._now_ms()
        await self._brakes.read()
        open_campaigns = list(self._book.proposed())
        self.open_campaigns = len(open_campaigns)
        _metrics.OPEN.set(len(open_campaigns))
        undecided = [(name, campaign) for name, campaign in open_campaigns if campaign.decided.needs_decisions(now_ms)]
        limit = self._settings.campaigns_open
        decided_now, too_many = undecided[:limit], undecided[limit:]
        self.waiting = dict(self._book.left_alone)
        for name, _ in too_many:
            self.waiting[name] = f"campaigns_open={limit} others were proposed before it"
        CAMPAIGNS.show(undecided, self._sweep.counts)
        for name, campaign in decided_now:
            try:
                await self._act(publisher, name, campaign, now_ms)
            except ManifoldError:
                raise
            except Exception as exc:  # noqa: BLE001  # one campaign must not stop the others
                self._book.leave_alone(name, exc)
                self.waiting |= self._book.left_alone
        # The last message of a campaign ends it, and the record of an ended campaign is no longer folded. So it is not awaited.
        open_names = {name for name, _ in open_campaigns}
        self._awaited = {name: seqs for name, seqs in self._awaited.items() if name in open_names}
        decided_names = {name for name, _ in decided_now}
        self._last_decisions = {name: last for name, last in self._last_decisions.items() if name in decided_names}
        self._sweep.keep_only(decided_names)
        self._set_problem(None)

    async def _act(self, publisher: Publisher, name: str, campaign: Campaign, now_ms: int) -> None:
        """Decide about one campaign if it is due, and publish its decisions and releases.

        If nothing can be decided about it, `waiting` gets the reason.
        """
        plan = campaign.decided.plan
        if campaign.decided.epoch > self._policy.epoch:
            self.waiting[name] = f"another campaigner has taken over with epoch {campaign.decided.epoch}"
            return
        if plan is None or not self._is_due(name, campaign):
            return
        if campaign.decided.epoch < self._policy.epoch or name in self._unsure:
            # A broker keeps the order of one client's messages. So once the fence is on record, any message that was published
            # earlier under this client id is on record too, or will never be.
            fence = Decide(r.Fence(name, self._policy.by, epoch=self._policy.epoch))
            is_sure = await self._publish(publisher, name, [fence], plan)
            if is_sure:
                self._unsure.discard(name)
            return
        may_release = await self._brakes.change_as_required(name, campaign)
        if self._is_decided(name, campaign):
            return
        began = time.monotonic()
        connected = self._sweep.take_found(name)
        effects = await asyncio.to_thread(step, campaign, now_ms, connected, self._policy)
        if may_release:
            messages = [effect for effect in effects if isinstance(effect, Decide | Release)]
        else:  # a brake may be on, so decisions alone are published
            self.waiting[name] = UNSURE
            messages = [effect for effect in effects if isinstance(effect, Decide)]
        is_sure = await self._publish(publisher, name, messages, plan)
        if not is_sure:
            self._unsure.add(name)
        elif name not in self._awaited and plan.away == "wait":
            # No record has to be folded first, so the next release depends on which targets are connected.
            vins, allowed = await asyncio.to_thread(candidates, campaign, now_ms, self._policy)
            if vins and allowed:
                self._sweep.look_for(name, vins, allowed)
        ended = time.monotonic()
        # If releases were left out, the same state is decided again in the next round.
        pause_until = ended + PAUSE_FACTOR * (ended - began) if may_release else 0.0
        self._last_decisions[name] = _LastDecision(campaign, pause_until)

    def _is_decided(self, name: str, campaign: Campaign) -> bool:
        """Whether the campaign needs no other decision now: it is unchanged, no targets were found, and its pause is not over."""
        last = self._last_decisions.get(name)
        if last is None or last.campaign is not campaign or self._sweep.has_found(name):
            return False
        return time.monotonic() < last.pause_until

    def _is_due(self, name: str, campaign: Campaign) -> bool:
        """Whether everything known of the campaign is folded and no refusal delays it; otherwise `waiting` gets the reason."""
        if self._book.is_behind(name):
            self.waiting[name] = "what is new of it is being folded"
            return False
        if time.monotonic() < self._refused_until.get(name, 0.0):
            self.waiting[name] = "the recorder has refused what was published; see the log"
            return False
        awaited = self._awaited.get(name, set()) - campaign.orders.keys() - campaign.releases.keys()
        if awaited:
            self._awaited[name] = awaited
            self.waiting[name] = f"waits for the records of {len(awaited)} of its own messages"
        else:
            self._awaited.pop(name, None)
        return not awaited

    async def _publish(self, publisher: Publisher, name: str, effects: Iterable[Decide | Release], plan: Plan) -> bool:
        """Publish effects in order, up to the first that is refused or gets no receipt.

        Return whether the campaigner is sure which of them are on record: False if one got no receipt.
        """
        for effect in effects:
            await self._lead.wait_until_held()
            log.info("publishing campaign message", campaign=name, **_log_fields(effect))
            try:
                if isinstance(effect, Decide):
                    receipt = await publisher.order(effect.command)
                else:
                    receipt = await publisher.publish(topics.RELEASE, trigger_payload(plan, effect))
            except Retryable as exc:
                log.warning("no receipt for campaign message", campaign=name, **_log_fields(effect), reason=str(exc))
                return False
            if receipt.status is ReceiptStatus.REFUSED:
                self._pause_after_refusal(name, effect, receipt)
                return True
            self._await_record(name, effect, receipt)
        return True

    def _pause_after_refusal(self, name: str, effect: Decide | Release, receipt: Receipt) -> None:
        """Decide nothing about the campaign for a while, because the recorder would refuse the same message again."""
        fields = _log_fields(effect)
        log.error("campaign message refused by recorder", campaign=name, **fields, reason=receipt.reason, retry_s=REFUSED_PAUSE_S)
        self._refused_until[name] = time.monotonic() + REFUSED_PAUSE_S

    def _await_record(self, name: str, effect: Decide | Release, receipt: Receipt) -> None:
        """Decide nothing more about the campaign until the message that was recorded is folded."""
        recorded_seq = receipt.duplicate_of or receipt.seq  # if an equal message was recorded before, only that one is folded
        self._awaited.setdefault(name, set()).add(recorded_seq)
        if receipt.duplicate_of is None:
            if isinstance(effect, Release):
                _metrics.RELEASED.inc(len(effect.vins))
            else:
                _metrics.DECISIONS.labels(_do(effect)).inc()
        log.info("campaign message recorded", campaign=name, seq=recorded_seq, **_log_fields(effect))

    async def _now_ms(self) -> int:
        """Return the instant for which to decide (Unix ms): `MARGIN_MS` before the earliest clock of any recorder.

        Recorders' clocks count, because the times of facts come from them.

        Raises:
            Retryable: the clocks of this process, the recorders and Redis are too far apart.
        """
        recorder_clocks = self._book.clocks_ms()
        all_clocks = [*recorder_clocks, wall_clock_ms()]
        with suppress(RedisError):  # if Redis is unavailable, nothing can be sent, so its clock does not matter
            all_clocks.append(await self._redis_ms())
        skew_ms = max(all_clocks) - min(all_clocks)
        if skew_ms > MAX_CLOCK_SKEW_MS:
            raise Retryable(f"the clocks of campaigner, recorders and Redis are {skew_ms} ms apart; set them by NTP")
        return min(recorder_clocks) - MARGIN_MS

    async def _redis_ms(self) -> int:
        """Return what the clock of Redis shows (Unix ms)."""
        seconds, microseconds = await self._queues.redis.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    async def _pause(self) -> None:
        """Wait until the next round is due, or until the sweep has found vehicles."""
        try:
            async with asyncio.timeout(AWAITING_INTERVAL_S if self._awaited else READ_INTERVAL_S):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    def _set_problem(self, problem: str | None) -> None:
        """Set why nothing is decided about any campaign (None: decisions are made), and log a problem when it begins."""
        if problem is not None and problem != self.problem:
            log.warning("decisions about all campaigns paused", reason=problem)
        self.problem = problem
        _metrics.STUCK.set(problem is not None)


def _log_fields(effect: Decide | Release) -> dict[str, Any]:
    """Return the log fields that identify an effect."""
    if isinstance(effect, Decide):
        return {"do": _do(effect)}
    return {"do": "release", "wave": effect.wave, "step": effect.step, "vehicles": len(effect.vins)}


def _do(effect: Decide) -> str:
    """Return the word for an order in its record, such as `pause`."""
    return str(effect.command.__struct_config__.tag)
