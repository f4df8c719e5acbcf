"""The state that follows from a campaign's orders: its stage, its plan, its approvals, and its open wave."""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from manifold.campaigns.facts import Again, Silence, Terms
from manifold.campaigns.plan import Plan
from manifold.contracts.campaigns import Target


class Stage(StrEnum):
    """The stage of a campaign."""

    NEW = "new"  # nothing is proposed yet
    PROPOSED = "proposed"
    REFUSED = "refused"
    RUNNING = "running"
    HELD = "held"  # targets of the open waves are still released, but the gate does not open the next wave yet
    PAUSED = "paused"
    CANCELLED = "cancelled"
    COMPLETED = "completed"


RELEASING = frozenset({Stage.RUNNING, Stage.HELD})
OVER = frozenset({Stage.REFUSED, Stage.CANCELLED, Stage.COMPLETED})


class Amendment(Struct, frozen=True):
    """An amended plan that allows more than the plan in force, and therefore waits for approvals."""

    plan: Plan
    plan_sha256: str
    tzdata: str
    by: str
    widened: tuple[str, ...]  # the fields in which it allows more
    approved_by: frozenset[str] = frozenset()


class Decided(Struct, frozen=True):
    """The state after all orders up to the newest."""

    stage: Stage = Stage.NEW
    because: str = "nothing is proposed"
    version: int = 0  # the number of orders that had an effect
    plan: Plan | None = None
    plan_sha256: str = ""
    tzdata: str = ""
    authors: frozenset[str] = frozenset()
    amendment: Amendment | None = None
    targets: tuple[Target, ...] = ()
    is_listed: bool = False  # the list of targets is complete
    approved_by: frozenset[str] = frozenset()
    wave: int = 0  # the index of the newest open wave
    opened_ms: int = 0  # when that wave was opened
    held_because: str = ""  # "gate" or "patience"; empty if the gate is not held
    held_ms: int = 0  # since when the gate is held
    passed_by: frozenset[str] = frozenset()  # people who have approved the gate of the open wave
    paused_from: Stage = Stage.RUNNING  # the stage before the pause
    pauses: frozenset[int] = frozenset()  # the seqs of all pauses since the last resume, also those of an already paused campaign
    tripped: frozenset[str] = frozenset()  # rules that a resume has to accept
    counts_from: Mapping[str, int] = {}  # rule → only facts with a higher seq count for the rule
    again: tuple[Again, ...] = ()  # orders to try targets again, by seq
    silences: tuple[Silence, ...] = ()
    epoch: int = 0  # the epoch of the newest campaigner
    tokens: Mapping[str, str] = {}  # token → digest of its order
    ignored: tuple[tuple[int, str], ...] = ()  # for each order without effect, its seq and the reason

    @property
    def is_approved(self) -> bool:
        """Whether as many people have approved as the plan requires."""
        return self.plan is not None and len(self.approved_by) >= self.plan.approve.people

    def needs_decisions(self, now_ms: int) -> bool:
        """Whether a campaigner has to decide about the campaign at `now_ms` (Unix ms).

        A proposal needs no decision while it waits for approvals, or after its plan's end.
        """
        if self.plan is None:
            return False
        if not self.is_proposal:
            return True
        return self.is_approved and now_ms < self.plan.ends_ms

    @property
    def terms(self) -> Terms:
        """The terms that, together with a target's attempts, decide its standing."""
        if self.plan is None:
            return Terms()
        is_by_answer = self.plan.success.by == "answer"
        return Terms(self.plan.retry, self.again, is_by_answer, self.silences)

    @property
    def unpaused_stage(self) -> Stage:
        """The stage of the campaign; if it is paused, the stage to which `resume` returns."""
        return self.paused_from if self.stage is Stage.PAUSED else self.stage

    @property
    def is_proposal(self) -> bool:
        """Whether the campaign is proposed and neither started nor refused. A proposal may be paused."""
        return self.unpaused_stage is Stage.PROPOSED

    @property
    def is_braked(self) -> bool:
        """Whether sending is stopped for this campaign."""
        return self.stage in (Stage.PAUSED, Stage.CANCELLED)
