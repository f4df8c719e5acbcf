"""Orders of people and of the campaigner: messages of the stream `campaign`."""

from collections.abc import Iterator

import pyarrow as pa

from manifold.archive.parsing.common import COMMON, Limits, Row, common, judged, parsed, refused
from manifold.contracts.campaigns import Command, decode
from manifold.contracts.messages import Refused, shown
from manifold.contracts.topics import CAMPAIGN

CAMPAIGNS = pa.schema([*COMMON, ("campaign", pa.string()), ("do", pa.string()), ("by", pa.string()), ("why", pa.string())])


def campaigns(messages: pa.Table, limits: Limits) -> Iterator[pa.RecordBatch]:
    """One row for each order, accepted or refused."""
    return parsed(messages, CAMPAIGNS, lambda row: [_row(row, judged(_said, row, limits))])


def _said(row: Row, _limits: Limits) -> Command | Refused:
    if row["topic"] != CAMPAIGN:
        return Refused(f"unknown topic {shown(row['topic'])}; orders to campaigns come on {CAMPAIGN}")
    return decode(row["payload"])


def _row(row: Row, said: Command | Refused) -> Row:
    if isinstance(said, Refused):
        return refused(row, said.reason)
    do = str(said.__struct_config__.tag)
    return common(row) | {"campaign": said.campaign, "do": do, "by": said.by, "why": said.why}
