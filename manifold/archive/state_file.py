"""State of a door that must outlive its process and is in no message: `state.json` beside its journal."""

import os
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar

import msgspec

from manifold.lake.storage import sync_folder


class DoorState(msgspec.Struct):
    """The facts that the next start of every door needs; each door adds its own."""

    last_seq: int = 0  # no seq up to here may be given again; the journal may know greater ones


S = TypeVar("S", bound=DoorState)


class StateFile(Generic[S]):
    """Read at start, replaced whole. `state` is `initial` until `load` has read the file."""

    def __init__(self, folder: Path, initial: S) -> None:
        self._path = folder / "state.json"
        self.state = initial
        self._saving = Lock()  # a door saves from several threads

    def load(self) -> S:
        """Read the state that the last process left; unchanged where it left none.

        Raises:
            msgspec.DecodeError: the file is not such a state.
        """
        if self._path.exists():
            self.state = msgspec.json.decode(self._path.read_bytes(), type=type(self.state))
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
