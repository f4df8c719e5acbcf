"""Brakes of campaigns: the orders after which none of a campaign's entries is sent, and what a dispatcher knows of a trigger."""

from typing import NamedTuple

from manifold.contracts.campaigns import Cancel, Command, Complete, Pause

OFF = "off"
WHY = {"pause": "is paused", "cancel": "is cancelled", "complete": "has ended"}


class Brake(NamedTuple):
    """The newest order that stops a campaign; `word` is its `do`, or `OFF` once the campaign goes on."""

    seq: int
    word: str

    @property
    def is_on(self) -> bool:
        """Whether nothing of the campaign may be sent."""
        return self.word != OFF

    def to_wire(self) -> str:
        """Return the value in Redis."""
        return f"{self.seq} {self.word}"

    @classmethod
    def from_wire(cls, value: bytes) -> "Brake":
        """Parse the value in Redis.

        Raises:
            ValueError: it is something else.
        """
        seq, _, word = value.decode().partition(" ")
        return cls(int(seq), word)


class Braking(NamedTuple):
    """An order that brakes a campaign."""

    campaign: str
    brake: Brake


def braking_of(seq: int, command: Command) -> Braking | None:
    """The brake that an order recorded as `seq` puts on; None for another order. No order alone takes a brake off."""
    if not isinstance(command, Pause | Cancel | Complete):
        return None
    return Braking(command.campaign, Brake(seq, str(command.__struct_config__.tag)))


class EntryTrigger(NamedTuple):
    """What all entries of a trigger share. `request_id` of a campaign's release is the campaign."""

    request_id: str
    data_id: str
    is_release: bool = False
    until_ms: int | None = None  # end of the vehicles' time window, Unix milliseconds
