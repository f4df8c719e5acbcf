"""### Fill the queues again from the lake.

**Reads** ids, outcomes and data of the lake. **Writes** Redis: every pending entry that the queues do not have; of compacted
queues all that is live, what of it is acknowledged, and positions; then the marker that says that they are loaded. Before that it
takes in all that is recorded, like `ingest_archives`. What has ended stays ended.

**Trigger it** when `manifold status` says *rebuild needed*: Redis was wiped or replaced. On loaded queues it only adds what is
missing, so doing it again is safe. `verify_queues` follows by itself. **Do not trigger it** while Redis is loading its file or an
archive is still being copied in.

**When it fails** the queues hold a part of what is pending, the marker is missing, and direct enqueue stays suspended:
new batches are still recorded, and wait. The log's last line says what to do; clear the task.

**To back out** there is nothing to do: it only adds entries that are pending in the lake.

Owner: data-platform.
"""

from airflow.sdk import DAG, Param

from dags._defaults import DAG_DEFAULTS, PUBLISHED, QUALITY_RESULTS, QUEUES, REBUILT, spark_job

with DAG(
    "rebuild_queues",
    schedule=None,
    tags=["fanout", "queues", "repair"],
    doc_md=__doc__,
    params={
        "flush": Param(True, type="boolean", description="first ask the recorder to close its open segments"),
    },
    **DAG_DEFAULTS,
):
    rebuilt = [*PUBLISHED, QUALITY_RESULTS, QUEUES, REBUILT]
    spark_job("rebuild", "{{ '' if params['flush'] else '--no-flush' }}", outlets=rebuilt)
