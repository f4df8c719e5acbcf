"""The result of one check of `manifold doctor`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One check: whether it passed, what was observed, and the remedy."""

    check: str
    passed: bool
    seen: str
    remedy: str = ""
