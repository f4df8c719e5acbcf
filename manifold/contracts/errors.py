"""Errors that Manifold raises on purpose. The class tells the caller how to react; the message names the value and the remedy."""


class ManifoldError(Exception):
    """Base class of Manifold's own errors."""


class Retryable(ManifoldError):
    """The operation did not happen; retrying later is safe."""


class Permanent(ManifoldError):
    """Retrying cannot help; fix what the message names."""


class OutcomeUnknown(ManifoldError):
    """The operation may have happened or not; check before retrying."""


class SettingsError(Permanent):
    """A setting is invalid; the message names each one, its value and the allowed values."""


def message_of(exc: BaseException) -> str:
    """Return the text of an error that a library raised; for an error without text, such as a timeout, return a substitute."""
    return str(exc) or ("no answer" if isinstance(exc, TimeoutError) else type(exc).__name__)
