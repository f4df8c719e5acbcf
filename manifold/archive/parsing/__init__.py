"""Parses the messages of segments into Arrow batches.

The parsers are those of the ingress services, so that services and pipelines accept the same messages. All functions are pure
functions of Arrow tables; `pipelines.ingest.reading` runs them on Spark's workers. A row with a `reason` is a refused message.
"""

from collections.abc import Mapping

from manifold.archive.parsing.answers import ANSWERS, answers
from manifold.archive.parsing.campaigns import CAMPAIGNS, campaigns
from manifold.archive.parsing.common import BLANK, Limits, Parser
from manifold.archive.parsing.ecq import ECQ, ECQ_BRIEF, EcqKind, ecq, ecq_brief
from manifold.archive.parsing.fanout import (
    DATA,
    IDS_PER_ROW,
    OTHER_BYTES,
    OUTCOMES,
    TRIGGERS,
    data,
    inline_data,
    outcomes,
    refused_triggers,
    triggers,
)
from manifold.archive.parsing.processing import PROCESSED, Processing
from manifold.archive.parsing.signals import SIGNALS, STATUSES, signals, statuses
from manifold.contracts.envelope import Stream

# The parser of each stream. A refused message yields a row with a `reason`; an accepted one yields its rows, if it has any.
PARSERS: Mapping[Stream, Parser] = {
    Stream.TRIGGER: triggers,
    Stream.DATA: data,
    Stream.OUTCOME: outcomes,
    Stream.ECQ: ecq,
    Stream.XRAY_RAW: signals,
    Stream.XRAY_STATUS: statuses,
    Stream.CAMPAIGN: campaigns,
    Stream.ANSWER: answers,
}

__all__ = [
    "ANSWERS",
    "BLANK",
    "CAMPAIGNS",
    "DATA",
    "ECQ",
    "ECQ_BRIEF",
    "IDS_PER_ROW",
    "OTHER_BYTES",
    "OUTCOMES",
    "PARSERS",
    "PROCESSED",
    "SIGNALS",
    "STATUSES",
    "TRIGGERS",
    "EcqKind",
    "Limits",
    "Parser",
    "Processing",
    "answers",
    "campaigns",
    "data",
    "ecq",
    "ecq_brief",
    "inline_data",
    "outcomes",
    "refused_triggers",
    "signals",
    "statuses",
    "triggers",
]
