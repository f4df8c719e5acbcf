"""Service state that outlives the process and is in no message: `state.json` in the journal folder."""

import os
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar

import msgspec

from manifold.lake.storage import sync_folder


class ServiceState(msgspec.Struct):
    """The state that every ingress service needs at its next start; each service adds its own."""

    last_seq: int = 0  # no seq up to here may be assigned again; the journal may have greater ones


S = TypeVar("S", bound=ServiceState)


class StateFile(Generic[S]):
    """A state that is read at start and replaced as a whole. `state` is `initial` until `load` has read the file."""

    def __init__(self, folder: Path, initial: S) -> None:
        self._path = folder / "state.json"
        self.state = initial
        self._saving = Lock()  # a service saves from several threads

    def load(self) -> S:
        """Read the state that the last process left; keep `initial` if there is none.

        Raises:
            msgspec.DecodeError: the file does not hold such a state.
        """
        if self._path.exists():
            self.state = msgspec.json.decode(self._path.read_bytes(), type=type(self.state))
        return self.state

    def remember_seq(self, last_seq: int) -> None:
        """Save that no seq up to `last_seq` may be assigned again; on disk when this returns."""
        if last_seq > self.state.last_seq:
            self.state.last_seq = last_seq
            self.save()

    def save(self) -> None:
        """Write the state; on disk when this returns."""
        hidden = self._path.with_suffix(".tmp")
        with self._saving:
            with hidden.open("wb") as file:
                file.write(msgspec.json.encode(self.state))
                file.flush()
                os.fsync(file.fileno())
            hidden.replace(self._path)
            sync_folder(self._path.parent)
