"""Errors that Manifold raises on purpose. The class tells the caller how to react; the message names the value and the remedy."""


class ManifoldError(Exception):
    """Base class of Manifold's own errors."""


class Retryable(ManifoldError):
    """Nothing happened; retrying later is safe."""


class Permanent(ManifoldError):
    """Retrying cannot help; fix what the message names."""


class OutcomeUnknown(ManifoldError):
    """It may have happened; check before retrying."""


class SettingsError(Permanent):
    """A setting is invalid; the message names each one, its value and the allowed values."""


def message_of(exc: BaseException) -> str:
    """Return the message of an error that a library raised; some have none, such as a timeout."""
    return str(exc) or ("no answer" if isinstance(exc, TimeoutError) else type(exc).__name__)
