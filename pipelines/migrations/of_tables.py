"""The steps of each table, in the order of its versions: the first leads from version 1 to version 2."""

import pyarrow as pa

from manifold.contracts.tables import (
    ACTIONS,
    DATA,
    ECQ_TABLES,
    ERASURES,
    IDS,
    INSTANT,
    META,
    OUTCOMES,
    QUALITY,
    QUARANTINE,
    SEGMENTS,
    SIGNAL_TABLES,
    XRAY_STATUS,
    Column,
)
from pipelines.migrations.ledger_days import LedgerDays
from pipelines.migrations.payload_index import PayloadIndex
from pipelines.migrations.steps import AddColumns, SetProperties, Step

# Many writers at once retry for a minute; and the number of metadata files is bounded.
MANY_WRITERS = SetProperties(
    "many-writers",
    {
        "commit.retry.num-retries": "30",
        "commit.retry.max-wait-ms": "2000",
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "50",
    },
)
SMALL_ROW_GROUPS = SetProperties(
    "small-row-groups",
    {"write.parquet.row-group-size-bytes": "1048576", "write.parquet.row-group-check-min-record-count": "4"},
)
FEW_MANIFESTS = SetProperties(
    "few-manifests", {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "30"}
)
WHERE_IT_LIES = (
    Column("sha1", pa.string(), "SHA-1 of the payload, as in sdv_fanout_data", required=False),
    Column("stored_at", INSTANT, "first_seen_at of the payload's row in sdv_fanout_data: where to find it", required=False),
)
WHY_REFUSED = (
    Column("refused_because", pa.string(), "why the file is no segment: it is in quarantine; null: it is in", required=False),
)
WHEN_IT_BEGAN = (
    Column("began_at", INSTANT, "when it began, as its path says; by this it is found; null: it does not", required=False),
)
OF_DELIVERIES = (
    Column("digest", pa.string(), "of a message that may be delivered twice: what is the same each time", required=False),
)
OF_STATUSES = (
    Column("content_digest", pa.string(), "SHA-256 of what it says; null in rows of an earlier release", required=False),
)

STEPS: dict[str, tuple[Step, ...]] = {
    DATA.name: (MANY_WRITERS, SMALL_ROW_GROUPS),
    META.name: (MANY_WRITERS, AddColumns("where-it-lies", WHERE_IT_LIES), SMALL_ROW_GROUPS, PayloadIndex("payload-index")),
    IDS.name: (MANY_WRITERS,),
    OUTCOMES.name: (MANY_WRITERS,),
    QUARANTINE.name: (MANY_WRITERS, AddColumns("of-deliveries", OF_DELIVERIES)),
    SEGMENTS.name: (
        MANY_WRITERS,
        AddColumns("why-refused", WHY_REFUSED),
        AddColumns("when-it-began", WHEN_IT_BEGAN),
        LedgerDays("days", (("began_at", "day"),)),
        FEW_MANIFESTS,
    ),
    QUALITY.name: (MANY_WRITERS,),
    ACTIONS.name: (MANY_WRITERS,),
    ERASURES.name: (),
    **{table.name: () for table in (*ECQ_TABLES, *SIGNAL_TABLES)},
    XRAY_STATUS.name: (AddColumns("of-statuses", OF_STATUSES),),
}
