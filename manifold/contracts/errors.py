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
    """Return the text of an error that a library raised.

    For an error without a text, return `no answer` if it is a timeout, else the name of its class.
    """
    text = str(exc)
    if text:
        return text
    return "no answer" if isinstance(exc, TimeoutError) else type(exc).__name__
