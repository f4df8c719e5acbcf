"""Records of the campaign stream: orders by people and decisions by the campaigner, as canonical JSON.

A record has no seq of its own: the recorder assigns one, and the pair is a `Recorded`.
"""

import re
from codecs import BOM_UTF8
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from manifold.contracts.messages import NAME_RULE, Refused
from manifold.contracts.names import MAX_ID, is_id, is_vin
from manifold.contracts.seq import MAX_SEQ

CAMPAIGNER = "campaigner/"  # prefix of `by` in the campaigner's own decisions
MAX_TARGETS = 50_000  # per record; a longer list is split into several records
_TOKEN = re.compile(r"[0-9a-f]{32}")

# Endings of a target's last attempt after which the target may be retried.
Retriable = Literal["failed", "busy", "expired", "cancelled", "superseded", "silent", "rejected"]
Number = Annotated[int, Meta(ge=0, le=MAX_SEQ)]  # no column holds a larger one
Counts = dict[str, Number]


class Order(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="do"):
    """Fields common to all records. A repeated `token` makes a repeated order idempotent."""

    campaign: str
    by: str  # a person, or `campaigner/<node>`
    why: str = ""
    if_version: Number | None = None  # optimistic lock: refused if the campaign has another version
    token: str | None = None
    epoch: Number = 0  # of the campaigner that decided; 0: a person gave the order
    seen: Number = 0  # the newest seq that the campaigner knew when it decided; its counts include all records up to this seq

    def __post_init__(self) -> None:
        if not is_id(self.campaign):
            raise ValueError(f"campaign: must be 1 to {MAX_ID} {NAME_RULE}")
        if not self.by:
            raise ValueError("by: must name a person, or the campaigner")
        if self.token is not None and not _TOKEN.fullmatch(self.token):
            raise ValueError("token: must be 32 lower-case hexadecimal digits, chosen at random")

    @property
    def person(self) -> str:
        """The name of the person without the name of the system that vouches for it: `anna` for `airflow/anna`."""
        return self.by.rpartition("/")[2]


class Propose(Order, tag="propose", frozen=True):
    """Submit a plan for approval; its author is `by`."""

    plan: dict[str, Any] = {}
    tzdata: str = ""  # version of the time zone data used for the windows


class Target(Struct, frozen=True, array_like=True, gc=False):
    """A target vehicle; `wave` is the wave's name if the list assigns one."""

    vin: str
    zone: str | None = None
    wave: str | None = None


class AddTargets(Order, tag="targets", frozen=True):
    """Add a part of the resolved target list."""

    targets: tuple[Target, ...] = ()
    more: bool = False  # further parts follow; a list can be approved only after its last part was recorded

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= len(self.targets) <= MAX_TARGETS:
            raise ValueError(f"targets: must be 1 to {MAX_TARGETS} vehicles; send a longer list in several records")
        for target in self.targets:
            if not is_vin(target.vin):
                raise ValueError(f"targets: {target.vin[:64]!r} is not a VIN; send {NAME_RULE}")


class Approve(Order, tag="approve", frozen=True):
    """Approve the plan, or the gate of a wave."""

    wave: Number | None = None  # the wave whose gate is approved; None: the plan is approved
    plan_sha256: str = ""  # of the plan or amendment that the approver has read; empty: the one that waits for approval


class Refuse(Order, tag="refuse", frozen=True):
    """Reject the plan permanently."""


class Start(Order, tag="start", frozen=True):
    """Open the first wave: the plan is approved and its start time has come."""


class Hold(Order, tag="hold", frozen=True):
    """Hold at the wave's gate: its conditions are met and the soak runs, or the gate's `patience` has run out."""

    wave: Number = 0
    because: Literal["gate", "patience"] = "gate"
    counts: Counts = {}


class Unhold(Order, tag="unhold", frozen=True):
    """End the hold: the gate's conditions are no longer met; the soak restarts when they are."""

    wave: Number = 0
    counts: Counts = {}


class Pass(Order, tag="pass", frozen=True):
    """Open the wave after `wave`: its gate is satisfied, or a person overrides it."""

    wave: Number = 0
    counts: Counts = {}


class Amend(Order, tag="amend", frozen=True):
    """Replace the plan. If the new plan allows more than the old one, it takes effect only after people have approved it."""

    plan: dict[str, Any] = {}
    tzdata: str = ""


class Retry(Order, tag="retry", frozen=True):
    """Make targets wait for a new release if their last attempt ended in one of these ways.

    Their attempts are counted from zero.
    """

    ended: tuple[Retriable, ...] = ("failed",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ended:
            raise ValueError("ended: must list at least one outcome, such as failed")


class Silent(Order, tag="silent", frozen=True):
    """Count as silent the vehicles that acknowledged by `before_ms` (Unix milliseconds) and have not answered."""

    before_ms: Number = 0


class Pause(Order, tag="pause", frozen=True):
    """Stop releasing until a resume; `rule` names the rule that tripped."""

    rule: str | None = None
    counts: Counts = {}


class Resume(Order, tag="resume", frozen=True):
    """Continue after a pause. `accept` names tripped rules whose result is accepted; these rules count from zero again."""

    accept: tuple[str, ...] = ()
    ends: tuple[Number, ...] = ()  # seqs of the pauses to end; any other pause stays in force. Empty: end all pauses


class Cancel(Order, tag="cancel", frozen=True):
    """Stop releasing for good."""

    rule: str | None = None
    counts: Counts = {}


class Complete(Order, tag="complete", frozen=True):
    """End the campaign: every target has settled, or the plan's end has come."""

    because: Literal["settled", "ends"] = "settled"
    counts: Counts = {}


class Note(Order, tag="note", frozen=True):
    """Record a remark. With `rule`, the remark is an alert of this rule, and the rule counts from zero again."""

    rule: str | None = None
    counts: Counts = {}


class Fence(Order, tag="fence", frozen=True):
    """Make this campaigner take over with `epoch`: decisions with a smaller epoch that are recorded later have no effect."""


Command = (
    Propose
    | AddTargets
    | Approve
    | Refuse
    | Start
    | Hold
    | Unhold
    | Pass
    | Amend
    | Retry
    | Silent
    | Pause
    | Resume
    | Cancel
    | Complete
    | Note
    | Fence
)

ORDERS = tuple(str(kind.__struct_config__.tag) for kind in get_args(Command))  # the words of `do`

_encode = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder(Command).decode


def encode(command: Command) -> bytes:
    """Return the canonical JSON of a record: sorted keys, no whitespace, no fields with default values."""
    return _encode(command)


def build_order(kind: type[Order], fields: Mapping[str, Any]) -> Command:
    """Build an order of this kind, given by a person, from plain values.

    Raises:
        ValueError: a field is unknown or has an invalid value, or `by` is a name of the campaigner.
    """
    try:
        order: Command = msgspec.convert(dict(fields) | {"do": kind.__struct_config__.tag}, Command)
    except msgspec.ValidationError as exc:
        raise ValueError(str(exc)) from exc
    if order.by.startswith(CAMPAIGNER):
        raise ValueError(f"by: {order.by!r} is a name of the campaigner; name a person")
    return order


def decode(payload: bytes) -> Command | Refused:
    """Return the record in `payload`, or why it is invalid."""
    try:
        command: Command = _decode(payload.removeprefix(BOM_UTF8))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        return Refused(
            f"not a record of a campaign: {exc}; send an object with do, campaign and by, and the fields of that order"
        )
    return command
