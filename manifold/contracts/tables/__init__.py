"""The lake's tables, defined once: Spark, PyIceberg and Arrow schemas derive from these definitions."""

from manifold.contracts.tables.campaigns import CAMPAIGN_ANSWERS, CAMPAIGN_EVENTS, CAMPAIGN_LIST, CAMPAIGN_TARGETS, CAMPAIGNS
from manifold.contracts.tables.ecq import ECQ_INDEX, ECQ_PAYLOAD, ECQ_SEQNO, ECQ_STATE, StateKind
from manifold.contracts.tables.fanout import DATA, IDS, META, OUTCOMES
from manifold.contracts.tables.runs import ACTIONS, ERASURES, QUALITY, QUARANTINE, SEGMENTS, RuleOutcome, Severity
from manifold.contracts.tables.table import (
    COMMON_PROPERTIES,
    FEW_MANIFESTS,
    INSTANT,
    MIGRATING,
    NAMESPACE,
    SCHEMA_VERSION,
    SMALL_ROW_GROUPS,
    Column,
    Table,
)
from manifold.contracts.tables.xray import XRAY_PROCESSED, XRAY_RAW, XRAY_STATUS

ECQ_TABLES = (ECQ_PAYLOAD, ECQ_INDEX, ECQ_STATE, ECQ_SEQNO)
ORDER_TABLES = (CAMPAIGNS, CAMPAIGN_EVENTS, CAMPAIGN_TARGETS)  # of the stream `campaign`
CAMPAIGN_TABLES = (*ORDER_TABLES, CAMPAIGN_ANSWERS)
# Tables that a run writes on its own branches and publishes together. The others are appended to directly.
RUN_TABLES = (DATA, META, IDS, OUTCOMES, *ECQ_TABLES, *CAMPAIGN_TABLES, QUARANTINE, SEGMENTS)
TABLES = (*RUN_TABLES, QUALITY, ACTIONS, ERASURES)
# Exist only in lakes that received signals: `manifold.lake.catalog.tables_of` and `run_tables_of` return a lake's tables.
SIGNAL_TABLES = (XRAY_RAW, XRAY_PROCESSED, XRAY_STATUS)
EVERY_RUN_TABLE = (*RUN_TABLES[:-2], *SIGNAL_TABLES, *RUN_TABLES[-2:])
EVERY_TABLE = (*EVERY_RUN_TABLE, QUALITY, ACTIONS, ERASURES)

__all__ = [
    "ACTIONS",
    "CAMPAIGNS",
    "CAMPAIGN_ANSWERS",
    "CAMPAIGN_EVENTS",
    "CAMPAIGN_LIST",
    "CAMPAIGN_TABLES",
    "CAMPAIGN_TARGETS",
    "COMMON_PROPERTIES",
    "DATA",
    "ECQ_INDEX",
    "ECQ_PAYLOAD",
    "ECQ_SEQNO",
    "ECQ_STATE",
    "ECQ_TABLES",
    "ERASURES",
    "EVERY_RUN_TABLE",
    "EVERY_TABLE",
    "FEW_MANIFESTS",
    "IDS",
    "INSTANT",
    "META",
    "MIGRATING",
    "NAMESPACE",
    "ORDER_TABLES",
    "OUTCOMES",
    "QUALITY",
    "QUARANTINE",
    "RUN_TABLES",
    "SCHEMA_VERSION",
    "SEGMENTS",
    "SIGNAL_TABLES",
    "SMALL_ROW_GROUPS",
    "TABLES",
    "XRAY_PROCESSED",
    "XRAY_RAW",
    "XRAY_STATUS",
    "Column",
    "RuleOutcome",
    "Severity",
    "StateKind",
    "Table",
]
