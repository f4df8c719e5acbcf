"""Errors raised on purpose. The class names the caller's next decision; the message names the value and the remedy."""


class ManifoldError(Exception):
    """Root of every error that Manifold raises on purpose."""


class Retryable(ManifoldError):
    """Nothing happened; trying again later is safe."""


class Permanent(ManifoldError):
    """It cannot work as it is; change what the message names."""


class OutcomeUnknown(ManifoldError):
    """It may have happened; look before trying again."""


class SettingsError(Permanent):
    """A setting is wrong; the message names each one, its value and what would be right."""
