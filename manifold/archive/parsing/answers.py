"""Answers of vehicles to campaigns: messages of the stream `answer`."""

from collections.abc import Iterator

import pyarrow as pa

from manifold.archive.parsing.common import COMMON, Limits, Row, common_columns, refused_row, rows_of_messages, validated
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
    return rows_of_messages(messages, ANSWERS, lambda message: [_row(message, validated(_parse, message, limits))])


def _parse(message: Row, _limits: Limits) -> VehicleAnswer | Refused:
    return parse_answer(message["topic"], message["payload"])


def _row(message: Row, answer: VehicleAnswer | Refused) -> Row:
    if isinstance(answer, Refused):
        return refused_row(message, answer.reason)
    return common_columns(message) | {
        "vin": answer.vin,
        "campaign": answer.campaign,
        "release": answer.release,
        "status": answer.answer.value,
        "answer_reason": answer.reason or None,
    }
