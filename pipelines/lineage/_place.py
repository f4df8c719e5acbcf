"""Inputs and outputs of jobs that are not tables."""

from typing import Literal

Place = Literal["archive", "keys", "queues"]
