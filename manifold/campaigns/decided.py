"""The state that a campaign's orders give: its stage, its plan, who has approved, which wave is open."""

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
    HELD = "held"  # the open wave goes on, and its gate waits
    PAUSED = "paused"
    CANCELLED = "cancelled"
    COMPLETED = "completed"


RELEASING = frozenset({Stage.RUNNING, Stage.HELD})
OVER = frozenset({Stage.REFUSED, Stage.CANCELLED, Stage.COMPLETED})


class Amendment(Struct, frozen=True):
    """A plan that allows more than the present one, and waits for its approval."""

    plan: Plan
    plan_sha256: str
    tzdata: str
    by: str
    widened: tuple[str, ...]  # fields
    approved_by: frozenset[str] = frozenset()


class Decided(Struct, frozen=True):
    """The state after all orders up to the newest."""

    stage: Stage = Stage.NEW
    because: str = "nothing is proposed"
    version: int = 0  # orders that had an effect
    plan: Plan | None = None
    plan_sha256: str = ""
    tzdata: str = ""
    authors: frozenset[str] = frozenset()
    amendment: Amendment | None = None
    targets: tuple[Target, ...] = ()
    is_listed: bool = False  # the list of targets is complete
    approved_by: frozenset[str] = frozenset()
    wave: int = 0  # the open one
    opened_ms: int = 0  # when it was opened
    held_because: str = ""  # gate, patience
    held_ms: int = 0  # since when
    passed_by: frozenset[str] = frozenset()  # people who have approved the gate of the open wave
    paused_from: Stage = Stage.RUNNING
    pauses: frozenset[int] = frozenset()  # the seqs of all pauses since the last resume, also of a paused campaign
    tripped: frozenset[str] = frozenset()  # rules that a resume has to accept
    counts_from: Mapping[str, int] = {}  # rule → the seq after which it counts
    again: tuple[Again, ...] = ()  # orders to try targets again, by seq
    silences: tuple[Silence, ...] = ()
    epoch: int = 0  # of the newest campaigner
    tokens: Mapping[str, str] = {}  # token → digest of its order
    ignored: tuple[tuple[int, str], ...] = ()  # seq of an order without effect, and why

    @property
    def is_approved(self) -> bool:
        """Whether as many people have approved as the plan asks for."""
        return self.plan is not None and len(self.approved_by) >= self.plan.approve.people

    def may_go_on(self, now_ms: int) -> bool:
        """Whether anything is to be decided; not of a plan that waits for people, or was not approved before its end."""
        if self.plan is None or not self.is_proposal:
            return self.plan is not None
        return self.is_approved and now_ms < self.plan.ends_ms

    @property
    def terms(self) -> Terms:
        """What decides the standing of a target, besides its attempts."""
        if self.plan is None:
            return Terms()
        return Terms(self.plan.retry, self.again, self.plan.success.by == "answer", self.silences)

    @property
    def unpaused_stage(self) -> Stage:
        """The stage; of a paused campaign, the one that `resume` returns to."""
        return self.paused_from if self.stage is Stage.PAUSED else self.stage

    @property
    def is_proposal(self) -> bool:
        """Whether it was proposed and neither started nor refused. It may be paused."""
        return self.unpaused_stage is Stage.PROPOSED

    @property
    def is_braked(self) -> bool:
        """Whether nothing of this campaign may be sent."""
        return self.stage in (Stage.PAUSED, Stage.CANCELLED)
