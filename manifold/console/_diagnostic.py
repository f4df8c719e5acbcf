"""The result of one check of `manifold doctor`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """The result of one check."""

    check: str  # its name
    passed: bool
    seen: str  # what was observed: the state, or the error
    remedy: str = ""  # what to do if the check failed; may be set although it passed
