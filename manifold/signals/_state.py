"""The facts of the AMQP door that must outlive its process."""

from pathlib import Path

from manifold.archive import state_file


class SignalsState(state_file.DoorState):
    """When its raw queue was last seen empty, beside the last seq that it gave."""

    empty_at: float = 0.0  # Unix seconds; 0: never


class StateFile(state_file.StateFile[SignalsState]):
    """The file of this door."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SignalsState())

    def remember_empty(self, at: float) -> None:
        """The queue was last seen empty at `at`; on disk when this returns."""
        self.state.empty_at = at
        self.save()
