"""The plan of a campaign: an immutable document, checked field by field when it is parsed.

Fields keep the text that the author wrote; properties return the numbers that the text means. The `__post_init__` of each class
checks its fields. A broken rule raises `ValueError("<field>: <remedy>")`, to which `parsing` adds the field's path and value.
"""

import math
from typing import Literal

from msgspec import Struct

from manifold.campaigns import quantities
from manifold.campaigns.quantities import checked
from manifold.campaigns.standing import STATUSES
from manifold.campaigns.success import Retry, Success
from manifold.campaigns.windows import Window
from manifold.contracts.messages import NAME_RULE
from manifold.contracts.names import MAX_ID, MAX_VIN, are_vins, is_id, is_vin
from manifold.contracts.outcomes import Outcome

MAX_INLINE_VINS = 10_000
MAX_PER_MINUTE = 1_000_000
# Each rule may count each wave several times a second, so both numbers are bounded.
MAX_WAVES, MAX_RULES = 500, 50
MAX_NAME = 100  # characters
REST = "rest"  # the size of a last wave that takes all targets that are left

Away = Literal["wait", "queue"]
Stay = Literal["frozen"]
Counted = Literal["failed", "busy", "rejected", "silent", "expired", "cancelled"]
CountedOf = Literal["known"]
Reaction = Literal["pause", "cancel", "alert"]


class Targets(Struct, frozen=True, forbid_unknown_fields=True):
    """The source of the campaign's vehicles; exactly one of `vins`, `file`, `data`, `batch` and `campaign`.

    A list that the plan does not contain is read from its source and recorded before people approve the plan.
    """

    vins: tuple[str, ...] | None = None
    file: str | None = None
    data: str | None = None
    batch: str | None = None
    campaign: str | None = None
    ended: tuple[str, ...] = ()  # take only the vehicles of the batch or campaign whose entries ended in one of these ways
    stay: Stay = "frozen"

    def __post_init__(self) -> None:
        sources = [name for name in ("vins", "file", "data", "batch", "campaign") if getattr(self, name) is not None]
        if len(sources) != 1:  # the message begins without a field, because it concerns `targets` as a whole
            raise ValueError(f": names {len(sources)} sources; name exactly one of vins, file, data, batch, campaign")
        needs_ended = sources[0] in ("batch", "campaign")
        if needs_ended != bool(self.ended):
            raise ValueError("ended: belongs to batch or campaign; list there the outcomes to take, such as failed, expired")
        allowed = tuple(Outcome) if self.batch is not None else STATUSES
        for index, outcome in enumerate(self.ended):
            if outcome not in allowed:
                raise ValueError(f"ended[{index}]: must be how vehicles of a {sources[0]} ended: {', '.join(allowed)}")
        if self.vins is not None:
            _check_vins(self.vins)


class Gate(Struct, frozen=True, forbid_unknown_fields=True):
    """The conditions under which the next wave opens. They are shares of the targets of this wave."""

    released: str = "100%"  # least share of the wave's targets that are released
    known: str = "100%"  # least share of the released targets that have settled
    success: str = "0%"  # least share of the settled targets that are successes
    soak: str = "0s"  # how long the conditions have to hold without a break
    approve: int = 0  # how many people have to approve
    # If the conditions are not met this long after the wave opened, the gate is held with an alert. It still passes only when its
    # conditions are met, or when a person passes it.
    patience: str | None = None

    def __post_init__(self) -> None:
        for name in ("released", "known", "success"):
            checked(name, quantities.share, getattr(self, name))
        for name in ("released", "known"):
            if quantities.share(getattr(self, name)) == 0:
                raise ValueError(f'{name}: must be more than "0%", or the next wave would open before anything is known')
        checked("soak", quantities.duration_ms, self.soak)
        if self.patience is not None:
            checked("patience", quantities.duration_ms, self.patience)
        if not 0 <= self.approve <= 9:
            raise ValueError("approve: must be the number of people who approve, 0 to 9")


class Wave(Struct, frozen=True, forbid_unknown_fields=True):
    """A step of the campaign. Its targets are the VINs that it names, or as many drawn targets as its size states."""

    name: str
    vins: tuple[str, ...] = ()
    size: int | str | None = None
    gate: Gate = Gate()

    def __post_init__(self) -> None:
        if not self.name.strip() or len(self.name) > MAX_NAME:
            raise ValueError(f"name: must be 1 to {MAX_NAME} characters; it is what people read in reports")
        if self.vins:
            _check_vins(self.vins)
        has_size, has_vins = self.size is not None, bool(self.vins)
        if has_size == has_vins:
            raise ValueError('size: give either vins or a size, such as 500, "1%" or "rest"')
        if isinstance(self.size, int) and self.size < 1:
            raise ValueError('size: must be at least 1 vehicle, a share such as "1%", or "rest"')
        if isinstance(self.size, str) and self.size != REST:
            share = checked("size", quantities.share, self.size)
            if share == 0:
                raise ValueError('size: must be more than "0%"; a wave of none opens nothing')


class Rate(Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from"}):
    """A number of releases a minute that grows with the number of successes."""

    start: int  # releases a minute at the beginning
    times: float  # the factor of each growth
    every: int  # successes from one growth to the next
    up_to: int  # the highest number of releases a minute

    def __post_init__(self) -> None:
        if not 1 <= self.start <= MAX_PER_MINUTE:
            raise ValueError(f"from: must be 1 to {MAX_PER_MINUTE} releases a minute")
        if not 1 < self.times <= 10:
            raise ValueError("times: must be a factor above 1, up to 10; give a constant rate as a plain number")
        if self.every < 1:
            raise ValueError("every: must be at least 1 success")
        if not self.start <= self.up_to <= MAX_PER_MINUTE:
            raise ValueError(f"up_to: must be at least the rate at the beginning, and at most {MAX_PER_MINUTE}")

    def at(self, successes: int) -> int:
        """Return the number of releases a minute after this many successes."""
        growths = successes // self.every
        # Logarithms are compared because the power may be too large for a float.
        if growths * math.log(self.times) >= math.log(self.up_to / self.start):
            return self.up_to
        return int(self.start * self.times**growths)


class Rule(Struct, frozen=True, forbid_unknown_fields=True, rename={"where": "in"}):
    """A rule by which the campaign stops when too many of its targets settle in certain ways."""

    name: str
    count: tuple[Counted, ...]  # the statuses that are counted
    over: int | str  # the limit, which may be reached but not exceeded: a number of targets, or a share of the known targets
    of: CountedOf = "known"
    at_least: int = 1  # a share is compared only if at least this many targets are known
    where: str = "campaign"  # whether to count in each wave, in the whole campaign, or over a duration before now
    then: Reaction = "pause"

    def __post_init__(self) -> None:
        if not self.name.strip() or len(self.name) > MAX_NAME:
            raise ValueError(f"name: must be 1 to {MAX_NAME} characters; a resume names the rules that it accepts")
        if not self.count:
            raise ValueError("count: must list at least one outcome, such as failed")
        if isinstance(self.over, int) and self.over < 0:
            raise ValueError('over: must be 0 or more vehicles, or a share such as "2%"')
        if isinstance(self.over, str):
            checked("over", quantities.share, self.over)
        if self.at_least < 1:
            raise ValueError("at_least: must be at least 1 known vehicle")
        if self.where not in ("wave", "campaign"):
            checked("in", quantities.duration_ms, self.where, remedy='must be "wave", "campaign", or a duration such as "30m"')


class Approval(Struct, frozen=True, forbid_unknown_fields=True):
    """How many people approve the plan before it starts."""

    people: int = 1
    not_the_author: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.people <= 9:
            raise ValueError("people: must be 1 to 9")


class Plan(Struct, frozen=True, forbid_unknown_fields=True):
    """A plan to send one `data_id` to a list of vehicles: in which waves, at which rate, at which times, under which rules."""

    campaign: str
    data_id: str
    targets: Targets
    ends: str
    waves: tuple[Wave, ...] = (Wave("all", size=REST),)
    rate: int | Rate | None = None  # releases in every sliding 60 s; None: no limit
    away: Away = "wait"
    window: Window | None = None
    rules: tuple[Rule, ...] = ()
    retry: Retry | None = None
    success: Success = Success()
    starts: str | None = None
    approve: Approval = Approval()
    wait_for_data: bool = False  # may be proposed before the data is published

    def __post_init__(self) -> None:
        for name in ("campaign", "data_id"):
            if not is_id(getattr(self, name)):
                raise ValueError(f"{name}: must be 1 to {MAX_ID} {NAME_RULE}")
        ends_ms = checked("ends", quantities.instant_ms, self.ends)
        if self.starts is not None and checked("starts", quantities.instant_ms, self.starts) >= ends_ms:
            raise ValueError("starts: must be before ends")
        if isinstance(self.rate, int) and not 1 <= self.rate <= MAX_PER_MINUTE:
            raise ValueError(f"rate: must be 1 to {MAX_PER_MINUTE} releases a minute; leave it out for no limit")
        if not self.waves:
            raise ValueError("waves: must name at least one wave; leave it out for a single one")
        for field, max_count in (("waves", MAX_WAVES), ("rules", MAX_RULES)):
            waves_or_rules = getattr(self, field)
            if len(waves_or_rules) > max_count:
                raise ValueError(f"{field}: must be at most {max_count}; divide them among several campaigns")
            names = [wave_or_rule.name for wave_or_rule in waves_or_rules]
            if len(set(names)) < len(names):
                raise ValueError(f"{field}: two have the same name; give each its own")
        if any(wave.size == REST for wave in self.waves[:-1]):
            raise ValueError('waves: only the last may have the size "rest"; nothing is left for those after it')

    @property
    def starts_ms(self) -> int:
        """The earliest instant at which the first wave opens (Unix ms); 0 if it opens as soon as the plan is approved."""
        return 0 if self.starts is None else quantities.instant_ms(self.starts)

    @property
    def ends_ms(self) -> int:
        """When the campaign is over (Unix ms), even if targets are still waiting."""
        return quantities.instant_ms(self.ends)

    def per_minute(self, successes: int) -> int:
        """Return how many targets may be released in any 60 s after this many successes."""
        if self.rate is None:
            return MAX_PER_MINUTE
        return self.rate if isinstance(self.rate, int) else self.rate.at(successes)


def _check_vins(vins: tuple[str, ...]) -> None:
    """Raise `ValueError` if this is not a list of distinct VINs that a plan may contain."""
    if not 1 <= len(vins) <= MAX_INLINE_VINS:
        raise ValueError(f"vins: must be 1 to {MAX_INLINE_VINS} VINs; name a file for more")
    if not are_vins(vins):  # faster than to check them one by one
        bad_index = next(index for index, vin in enumerate(vins) if not is_vin(vin))
        raise ValueError(f"vins[{bad_index}]: must be 1 to {MAX_VIN} {NAME_RULE}")
    if len(set(vins)) < len(vins):
        raise ValueError("vins: names a VIN twice; name each once")
