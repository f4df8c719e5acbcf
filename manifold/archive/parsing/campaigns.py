"""Orders of people and of the campaigner: messages of the stream `campaign`."""

from collections.abc import Iterator

import pyarrow as pa

from manifold.archive.parsing.common import COMMON, Limits, Row, common, parsed, refused, validated
from manifold.contracts.campaigns import Command, decode
from manifold.contracts.messages import Refused, shown
from manifold.contracts.topics import CAMPAIGN

CAMPAIGNS = pa.schema([*COMMON, ("campaign", pa.string()), ("do", pa.string()), ("by", pa.string()), ("why", pa.string())])


def campaigns(messages: pa.Table, limits: Limits) -> Iterator[pa.RecordBatch]:
    """One row for each order, accepted or refused."""
    return parsed(messages, CAMPAIGNS, lambda row: [_row(row, validated(_content, row, limits))])


def _content(row: Row, _limits: Limits) -> Command | Refused:
    if row["topic"] != CAMPAIGN:
        return Refused(f"unknown topic {shown(row['topic'])}; orders to campaigns come on {CAMPAIGN}")
    return decode(row["payload"])


def _row(row: Row, content: Command | Refused) -> Row:
    if isinstance(content, Refused):
        return refused(row, content.reason)
    do = str(content.__struct_config__.tag)
    return common(row) | {"campaign": content.campaign, "do": do, "by": content.by, "why": content.why}
