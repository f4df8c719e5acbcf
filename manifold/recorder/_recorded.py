"""The record of a redelivered message."""

from typing import NamedTuple


class Recorded(NamedTuple):
    """The seq of a message that was recorded before, and whether it was refused, for its content or the rate limit."""

    seq: int
    refused: bool
