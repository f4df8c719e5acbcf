"""State of the AMQP door that survives restarts."""

from pathlib import Path

from manifold.archive import state_file


class SignalsState(state_file.ServiceState):
    """The last seq assigned, and until when the backlog of signals was delivered."""

    empty_at: float = 0.0  # Unix seconds; every signal published before was delivered. 0: unknown


class StateFile(state_file.StateFile[SignalsState]):
    """The state file of this door."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SignalsState())

    def save_delivered_until(self, unix_s: float) -> None:
        """Save that every signal published before this time was delivered. When this returns, the file is on disk."""
        self.state.empty_at = unix_s
        self.save()
