"""The state that a service keeps across restarts, in addition to its messages: `state.json` in the journal folder."""

import os
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar

import msgspec

from manifold.lake.storage import sync_folder


class ServiceState(msgspec.Struct):
    """The fields that every ingress service needs at its next start. A service may add fields in a subclass."""

    last_seq: int = 0  # no seq up to this one may be assigned again; the journal may contain greater seqs


S = TypeVar("S", bound=ServiceState)


class StateFile(Generic[S]):
    """The file with a service's state. `state` is `initial` until `load` has read the file."""

    def __init__(self, folder: Path, initial: S) -> None:
        self._path = folder / "state.json"
        self.state = initial
        self._saving = Lock()  # several threads of a service may save

    def load(self) -> S:
        """Read the state from the file, if it exists, and return the state.

        Raises:
            msgspec.DecodeError: the content of the file is not a valid state.
        """
        if self._path.exists():
            self.state = msgspec.json.decode(self._path.read_bytes(), type=type(self.state))
        return self.state

    def remember_seq(self, last_seq: int) -> None:
        """Save that no seq up to `last_seq` may be assigned again. When this returns, the state is on disk."""
        if last_seq > self.state.last_seq:
            self.state.last_seq = last_seq
            self.save()

    def save(self) -> None:
        """Replace the content of the file by the state. When this returns, the state is on disk."""
        temporary = self._path.with_suffix(".tmp")
        with self._saving:
            with temporary.open("wb") as file:
                file.write(msgspec.json.encode(self.state))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
            sync_folder(self._path.parent)
