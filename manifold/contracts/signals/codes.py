"""Refusal codes, and the error report sent with a dead letter and to `reply_to`."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

import msgspec

# Characters of each text of a refusal. The texts are sent in a header, and may quote a field name of any length.
MAX_TEXT = 500


class Code(StrEnum):
    """The code of a refusal, in the order of the checks."""

    SIZE_ERROR = "SIZE_ERROR"  # over the size limit, compressed or not
    MALFORMED_JSON = "MALFORMED_JSON"  # not JSON in UTF-8
    VERSION_ERROR = "VERSION_ERROR"  # the schema version is not in the registry
    SCHEMA_ERROR = "SCHEMA_ERROR"  # a field or header violates the schema
    SIGNATURE_ERROR = "SIGNATURE_ERROR"  # not signed by the named device
    STALE_ERROR = "STALE_ERROR"  # signed too long ago, or in the future
    REPLAY_ERROR = "REPLAY_ERROR"  # the nonce was used by another message
    IDEMPOTENCY_CONFLICT = "IDEMPOTENCY_CONFLICT"  # known idempotency key with other content
    PROCESSING_ERROR = "PROCESSING_ERROR"  # out of retries; the message itself may be valid


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a message is refused. The texts contain nothing of the payload, which must not be readable without its key.

    Texts longer than `MAX_TEXT` characters are truncated.
    """

    code: Code
    message: str  # one sentence
    details: str = ""  # the field or header, and the remedy

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", _truncated(self.message))
        object.__setattr__(self, "details", _truncated(self.details))

    @property
    def reason(self) -> str:
        """The refusal in one line, as stored in the table `quarantine`."""
        details = f" ({self.details})" if self.details else ""
        return _truncated(f"{self.code}: {self.message}{details}")


class ErrorReport(msgspec.Struct, frozen=True, rename="camel"):
    """The error of the contract: the header `x-error` of a dead letter, and the body of a reply."""

    code: str
    message: str
    details: str
    timestamp: str
    correlation_id: str | None
    retry_count: int

    @classmethod
    def of(cls, refusal: Refusal, *, at: datetime, correlation_id: str | None, retry_count: int) -> "ErrorReport":
        """Build the report of a refusal."""
        stamp = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return cls(refusal.code.value, refusal.message, refusal.details, stamp, correlation_id, retry_count)

    def to_json(self) -> bytes:
        """Return the report as JSON."""
        return msgspec.json.encode(self)


def _truncated(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
