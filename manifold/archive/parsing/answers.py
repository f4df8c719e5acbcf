"""Answers of vehicles to campaigns: messages of the stream `answer`."""

from collections.abc import Iterator

import pyarrow as pa

from manifold.archive.parsing.common import COMMON, Limits, Row, common, judged, parsed, refused
from manifold.contracts.answers import VehicleAnswer, parse_answer
from manifold.contracts.messages import Refused

ANSWERS = pa.schema(
    [
        *COMMON,
        ("vin", pa.string()),
        ("campaign", pa.string()),
        ("release", pa.int64()),  # the seq of the message that it answers
        ("status", pa.string()),
        ("answer_reason", pa.string()),  # the vehicle's; null if it gave none
    ]
)


def answers(messages: pa.Table, limits: Limits) -> Iterator[pa.RecordBatch]:
    """One row for each answer, accepted or refused."""
    return parsed(messages, ANSWERS, lambda row: [_row(row, judged(_said, row, limits))])


def _said(row: Row, _limits: Limits) -> VehicleAnswer | Refused:
    return parse_answer(row["topic"], row["payload"])


def _row(row: Row, said: VehicleAnswer | Refused) -> Row:
    if isinstance(said, Refused):
        return refused(row, said.reason)
    fields = {"vin": said.vin, "campaign": said.campaign, "release": said.release, "status": said.answer.value}
    return common(row) | fields | {"answer_reason": said.reason or None}
