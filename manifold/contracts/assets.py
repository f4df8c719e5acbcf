"""The assets that the DAGs produce: the names and addresses by which Airflow shows them and triggers other DAGs.

One asset a table, emitted by every task that may have changed its rows; the names of the tables are those of
`manifold.contracts.tables`, which DAG files do not import because it brings Arrow.
"""

SCHEME = "manifold"
NAMESPACE = "sdv"
# What a run publishes, and what its audit says of it.
PUBLISHED = (
    "sdv_fanout_data",
    "sdv_fanout_meta",
    "sdv_fanout_ids",
    "sdv_fanout_outcomes",
    "ecq_payload",
    "ecq_index",
    "ecq_state",
    "ecq_seqno",
    "xray_raw_signals",
    "xray_processed_signals",
    "xray_device_status",
    "quarantine",
    "ingested_segments",
)
JUDGED = "quality_results"
QUEUES = "queues"  # what was pending in the lake has been offered to the queues
REBUILT = "rebuilt"  # the queues were filled again from the lake


def table_uri(table: str) -> str:
    """The address of a table's asset."""
    return f"{SCHEME}://lake/{NAMESPACE}/{table}"


def queues_uri(name: str) -> str:
    """The address of what has happened to the queues."""
    return f"{SCHEME}://queues/{name}"
