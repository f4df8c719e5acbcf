"""State of the AMQP door that survives restarts."""

from pathlib import Path

from manifold.archive import state_file


class SignalsState(state_file.ServiceState):
    """The last seq issued, and when the raw queue was last seen empty."""

    empty_at: float = 0.0  # Unix seconds; 0: never


class StateFile(state_file.StateFile[SignalsState]):
    """The state file of this door."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SignalsState())

    def remember_empty(self, unix_s: float) -> None:
        """Save the time when the queue was last seen empty. The file is on disk when this returns."""
        self.state.empty_at = unix_s
        self.save()
