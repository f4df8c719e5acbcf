"""Answers of vehicles to campaigns: messages of the stream `answer`."""

from collections.abc import Iterator

import pyarrow as pa

from manifold.archive.parsing.common import COMMON, Limits, Row, common, refused, rows_of_messages, validated
from manifold.contracts.answers import VehicleAnswer, parse_answer
from manifold.contracts.messages import Refused

ANSWERS = pa.schema(
    [
        *COMMON,
        ("vin", pa.string()),
        ("campaign", pa.string()),
        ("release", pa.int64()),  # the seq of the message that the vehicle answers
        ("status", pa.string()),
        ("answer_reason", pa.string()),  # the reason given by the vehicle, or null
    ]
)


def answers(messages: pa.Table, limits: Limits) -> Iterator[pa.RecordBatch]:
    """Parse the stream into one row per message, accepted or refused."""
    return rows_of_messages(messages, ANSWERS, lambda row: [_row(row, validated(_content, row, limits))])


def _content(row: Row, _limits: Limits) -> VehicleAnswer | Refused:
    return parse_answer(row["topic"], row["payload"])


def _row(row: Row, content: VehicleAnswer | Refused) -> Row:
    if isinstance(content, Refused):
        return refused(row, content.reason)
    fields = {"vin": content.vin, "campaign": content.campaign, "release": content.release, "status": content.answer.value}
    return common(row) | fields | {"answer_reason": content.reason or None}
