"""Brakes, the orders that stop the sending of a campaign's entries; and the facts that a dispatcher needs about a trigger."""

from typing import NamedTuple

from manifold.contracts.campaigns import Cancel, Command, Complete, Pause

OFF = "off"
WHY = {"pause": "is paused", "cancel": "is cancelled", "complete": "has ended"}


class Brake(NamedTuple):
    """The newest order that stops a campaign. `word` is the order's `do`, or `OFF` once the campaign has been resumed."""

    seq: int
    word: str

    @property
    def is_on(self) -> bool:
        """Whether the campaign is stopped, so that none of its entries may be sent."""
        return self.word != OFF

    def to_wire(self) -> str:
        """Return the value in Redis."""
        return f"{self.seq} {self.word}"

    @classmethod
    def from_wire(cls, value: bytes) -> "Brake":
        """Parse the value in Redis.

        Raises:
            ValueError: the value is not a brake.
        """
        seq, _, word = value.decode().partition(" ")
        return cls(int(seq), word)


class Braking(NamedTuple):
    """An order that brakes a campaign."""

    campaign: str
    brake: Brake


def braking_of(seq: int, command: Command) -> Braking | None:
    """Return the brake that an order recorded under `seq` sets; None if the order does not stop its campaign.

    No order switches a brake off, not even a resume: another order may still stop the campaign. The campaigner switches it off,
    once the state folded from all orders allows it.
    """
    if not isinstance(command, Pause | Cancel | Complete):
        return None
    word = str(command.__struct_config__.tag)  # the `do` of the order
    return Braking(command.campaign, Brake(seq, word))


class EntryTrigger(NamedTuple):
    """Facts about a trigger, which hold for all its entries. For a campaign's release, `request_id` is the campaign."""

    request_id: str
    data_id: str
    is_release: bool = False
    until_ms: int | None = None  # end of the vehicles' time window, Unix milliseconds; None: no window
