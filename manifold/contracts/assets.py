"""The Airflow assets produced by the DAGs: their names and URIs, which trigger other DAGs.

One asset per table, emitted by every task that may have changed its rows. The table names repeat those of
`manifold.contracts.tables`, which DAG files do not import because it loads Arrow.
"""

SCHEME = "manifold"
NAMESPACE = "sdv"
# Tables published by a run; its audit results are in QUALITY_RESULTS.
PUBLISHED = (
    "sdv_fanout_data",
    "sdv_fanout_meta",
    "sdv_fanout_ids",
    "sdv_fanout_outcomes",
    "ecq_payload",
    "ecq_index",
    "ecq_state",
    "ecq_seqno",
    "sdv_campaigns",
    "sdv_campaign_events",
    "sdv_campaign_targets",
    "sdv_campaign_answers",
    "xray_raw_signals",
    "xray_processed_signals",
    "xray_device_status",
    "quarantine",
    "ingested_segments",
)
QUALITY_RESULTS = "quality_results"
QUEUES = "queues"  # pending entries of the lake were offered to the queues
REBUILT = "rebuilt"  # the queues were rebuilt from the lake


def table_uri(table: str) -> str:
    """Return the URI of a table's asset."""
    return f"{SCHEME}://lake/{NAMESPACE}/{table}"


def queues_uri(name: str) -> str:
    """Return the URI of a queue asset, `QUEUES` or `REBUILT`."""
    return f"{SCHEME}://queues/{name}"
