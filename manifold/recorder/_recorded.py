"""The record of a message that the broker sends again."""

from typing import NamedTuple


class Recorded(NamedTuple):
    """Its seq, and whether it was refused: for what it says, or because it came too soon."""

    seq: int
    refused: bool
