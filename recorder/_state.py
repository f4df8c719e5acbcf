"""The few facts that must outlive the process and are in no message."""

import os
from pathlib import Path
from threading import Lock

import msgspec

from adapters.storage import sync_folder


class RecorderState(msgspec.Struct):
    """The facts that the next start needs."""

    last_seq: int = 0  # no seq up to here may be given again; the journal may know greater ones
    gap_since: int | None = None  # first seq that was not handed over; what came before it was, to some Redis
    redis_run_id: str | None = None  # of the Redis to which it was: that one has lost nothing


class StateFile:
    """`state.json` beside the journal: read at start, replaced whole."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "state.json"
        self.state = RecorderState()
        self._saving = Lock()  # who hands over and who writes segments both save, each in a thread

    def load(self) -> RecorderState:
        """Read the state that the last process left; the defaults where there was none."""
        if self._path.exists():
            self.state = msgspec.json.decode(self._path.read_bytes(), type=RecorderState)
        return self.state

    def remember_seq(self, last_seq: int) -> None:
        """No seq up to `last_seq` may be given again; on disk when this returns."""
        if last_seq > self.state.last_seq:
            self.state.last_seq = last_seq
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
