"""The result of a history: totals, and the entries by broken promise. The checkers define the terms."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from tests.faults.history import What

Entry = tuple[str, int]  # vehicle, or name of the queue, and seq


class Breach(StrEnum):
    """Ways to break a promise."""

    LOST = "lost"
    UNEXPLAINED = "unexplained"
    OUT_OF_ORDER = "out of order"
    IN_FLIGHT_TOGETHER = "in flight together"
    RESURRECTED = "resurrected"
    UNASKED = "unasked"
    ALTERED = "altered"
    QUEUED_TWICE = "queued twice"
    UNRECORDED = "unrecorded"
    NEVER_ACKNOWLEDGED = "never acknowledged"
    RELEASED_TWICE = "released twice"
    SENT_WHILE_BRAKED = "sent while braked"
    OUTSIDE_ITS_WINDOW = "outside its window"
    OVER_ITS_RATE = "over its rate"
    CAMPAIGN_LOST = "campaign lost"
    ECQ_LOST = "ecq lost"
    ECQ_RESURRECTED = "ecq resurrected"
    ECQ_POSITION_GONE_BACK = "ecq position gone back"


@dataclass
class Verdict:
    """Totals and breaches. Entries count once; a copy counts for its entry."""

    attempted: int = 0
    accepted: int = 0
    delivered: int = 0
    duplicated: int = 0
    campaign_targets: int = 0
    campaign_delivered: int = 0
    ecq: Counter[What] = field(default_factory=Counter)  # the lines of compacted queues
    broken: dict[Breach, list[Entry]] = field(default_factory=dict)  # no list is empty

    def breach(self, how: Breach, entries: Iterable[Entry]) -> None:
        """Record that these entries break the promise."""
        if found := list(entries):
            self.broken.setdefault(how, []).extend(found)

    def counts(self) -> dict[str, int]:
        """Every total by name."""
        own = {word: getattr(self, word) for word in ("attempted", "accepted", "delivered", "duplicated")}
        own |= {"campaign targets": self.campaign_targets, "campaign delivered": self.campaign_delivered}
        of_ecq = {f"ecq {what}": self.ecq[what] for what in (What.ACCEPTED, What.DELIVERED, What.ENDED, What.REWOUND)}
        return own | of_ecq | {how.value: len(self.broken.get(how, ())) for how in Breach}
