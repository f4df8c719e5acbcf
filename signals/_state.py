"""The few facts that must outlive the process and are in no message."""

import os
from pathlib import Path
from threading import Lock

import msgspec

from adapters.storage import sync_folder


class DoorState(msgspec.Struct):
    """The facts that the next start needs."""

    last_seq: int = 0  # no seq up to here may be given again; the journal may know greater ones
    empty_at: float = 0.0  # when the raw queue was last seen empty, in Unix seconds; 0: never


class StateFile:
    """`state.json` beside the journal: read at start, replaced whole."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "state.json"
        self.state = DoorState()
        self._saving = Lock()  # two threads save

    def load(self) -> DoorState:
        """Read the state that the last process left; the defaults where there was none."""
        if self._path.exists():
            self.state = msgspec.json.decode(self._path.read_bytes(), type=DoorState)
        return self.state

    def remember_seq(self, last_seq: int) -> None:
        """No seq up to `last_seq` may be given again; on disk when this returns."""
        if last_seq > self.state.last_seq:
            self.state.last_seq = last_seq
            self.save()

    def remember_empty(self, at: float) -> None:
        """The queue was last seen empty at `at`; on disk when this returns."""
        self.state.empty_at = at
        self.save()

    def save(self) -> None:
        """On disk when this returns."""
        hidden = self._path.with_suffix(".tmp")
        with self._saving:
            with hidden.open("wb") as file:
                file.write(msgspec.json.encode(self.state))
                file.flush()
                os.fsync(file.fileno())
            hidden.replace(self._path)
            sync_folder(self._path.parent)
