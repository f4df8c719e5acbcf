"""The record of a redelivered message."""

from typing import NamedTuple


class Recorded(NamedTuple):
    """Its seq, and whether it was refused: for its content, or because it came too soon."""

    seq: int
    refused: bool
