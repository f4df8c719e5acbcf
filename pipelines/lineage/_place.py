"""What jobs read and write, besides tables."""

from typing import Literal

Place = Literal["archive", "keys", "queues"]
