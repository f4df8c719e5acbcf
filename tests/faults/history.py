"""A history: what happened to every entry, one line each, as reported by its witnesses.

Witnesses: the platform's publisher `attempted` and `accepted`; Redis, by MONITOR, `enqueued`, `published`, `parked`, `ended`,
`rewound` and `position`; the vehicles `delivered`, `acknowledged`, `came` and `gone`; the archive `recorded`; the injector
`fault`; a campaign `targeted`, `released` and `braked`. All of them share one machine's clock.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import IO


class What(StrEnum):
    """Kinds of lines."""

    ATTEMPTED = "attempted"  # the platform is about to publish a request for this vehicle
    ACCEPTED = "accepted"  # its receipt: on disk, under this seq
    ENQUEUED = "enqueued"  # the entry is in the vehicle's queue
    PARKED = "parked"  # the entry is parked until its data arrives
    PUBLISHED = "published"  # the entry was put in flight and is about to be published
    DELIVERED = "delivered"  # the vehicle's application has it; `dup`: the broker marked a possible duplicate
    ACKNOWLEDGED = "acknowledged"  # the vehicle sent its PUBACK
    ENDED = "ended"  # the dispatcher recorded an outcome (`note`)
    RECORDED = "recorded"  # that outcome (`note`) is in the archive
    CAME = "came"  # the vehicle is online
    GONE = "gone"  # the vehicle's connection ended; `note`: how
    REWOUND = "rewound"  # a rewind was applied to a compacted queue; `seq` is its own
    POSITION = "position"  # the position of a compacted queue moved to `seq`
    TARGETED = "targeted"  # the vehicle is a target of the campaign `request`; `note`: its rate
    RELEASED = "released"  # a release of the campaign `request` names the vehicle; `until`: the end of its window
    BRAKED = "braked"  # the campaign `request` was paused, by the receipt, `until` somebody resumed it
    FAULT = "fault"  # a fault lasted from `at` to `until` (`note`)


@dataclass(frozen=True, slots=True)
class Line:
    """One line. Instants are Unix seconds; `vin` is empty if the line concerns everybody."""

    at: float
    what: What
    vin: str = ""
    seq: int | None = None  # None: unknown to the witness, and given by `request`
    request: str = ""
    dup: bool = False
    sha1: str = ""  # of the payload
    until: float | None = None
    note: str = ""

    def to_json(self) -> str:
        """The line as JSON without empty fields."""
        return json.dumps({name: value for name, value in asdict(self).items() if value not in (None, "", False)})

    @classmethod
    def from_json(cls, text: str) -> "Line":
        """Parse a line that `to_json` wrote."""
        fields = json.loads(text)
        return cls(what=What(fields.pop("what")), **fields)

    def __str__(self) -> str:
        instant = datetime.fromtimestamp(self.at, UTC).strftime("%H:%M:%S.%f")[:-3]
        until = "" if self.until is None else f"for {self.until - self.at:.1f} s"
        words = [self.note, until, self.request, "" if self.seq is None else f"seq {self.seq}", "DUP" if self.dup else ""]
        return f"{instant}  {self.what:<13} {'  '.join(word for word in words if word)}"


class History:
    """Lines in the order of arrival; with a file, each is appended at once."""

    def __init__(self, file: Path | None = None) -> None:
        self.lines: list[Line] = []
        self._out: IO[str] | None = file.open("w", buffering=1) if file else None

    def tell(self, line: Line) -> None:
        """Add a line."""
        self.lines.append(line)
        if self._out is not None:
            self._out.write(line.to_json() + "\n")

    def close(self) -> None:
        """Close the history to further lines."""
        if self._out is not None:
            self._out.close()
            self._out = None


def read(file: Path) -> list[Line]:
    """Read a stored history."""
    with file.open() as lines:
        return [Line.from_json(line) for line in lines if line.strip()]


def about(lines: Iterable[Line], vin: str) -> Iterator[Line]:
    """Lines about one vehicle, and the faults, in the order of time."""
    return iter(sorted((line for line in lines if line.vin in (vin, "")), key=lambda line: line.at))
