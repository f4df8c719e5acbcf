"""Why a message is refused: the codes, and the error that travels with a dead letter and to `reply_to`."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

import msgspec

MAX_TEXT = 500  # characters of each text of a refusal: it travels in a header, and a body may name a field as long as itself


class Code(StrEnum):
    """The code of a refusal; the order is that of the checks."""

    SIZE_ERROR = "SIZE_ERROR"  # larger than a message may be, compressed or not
    MALFORMED_JSON = "MALFORMED_JSON"  # no JSON in UTF-8
    VERSION_ERROR = "VERSION_ERROR"  # a schema version that is not in the registry
    SCHEMA_ERROR = "SCHEMA_ERROR"  # a field, or a header, is not as the schema has it
    SIGNATURE_ERROR = "SIGNATURE_ERROR"  # not signed by the device that it names
    STALE_ERROR = "STALE_ERROR"  # signed too long ago, or in the future
    REPLAY_ERROR = "REPLAY_ERROR"  # the nonce of another message
    IDEMPOTENCY_CONFLICT = "IDEMPOTENCY_CONFLICT"  # other content under a known idempotency key
    PROCESSING_ERROR = "PROCESSING_ERROR"  # the message may be good: a server failed, as often as was tried


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a message is refused. Neither text holds anything of the payload, which nobody may read without its key.

    A text of more than `MAX_TEXT` characters is cut.
    """

    code: Code
    message: str  # one sentence
    details: str = ""  # the field or header, and the remedy

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", _cut(self.message))
        object.__setattr__(self, "details", _cut(self.details))

    @property
    def reason(self) -> str:
        """The refusal in one line, as the table `quarantine` has it."""
        return _cut(f"{self.code}: {self.message}" + (f" ({self.details})" if self.details else ""))


class ErrorReport(msgspec.Struct, frozen=True, rename="camel"):
    """The error as the contract has it: the header `x-error` of a dead letter, and the body of a reply."""

    code: str
    message: str
    details: str
    timestamp: str
    correlation_id: str | None
    retry_count: int

    @classmethod
    def of(cls, refusal: Refusal, *, at: datetime, correlation_id: str | None, retry_count: int) -> "ErrorReport":
        """The report of a refusal."""
        stamp = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return cls(refusal.code.value, refusal.message, refusal.details, stamp, correlation_id, retry_count)

    def to_json(self) -> bytes:
        """The report as JSON."""
        return msgspec.json.encode(self)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
