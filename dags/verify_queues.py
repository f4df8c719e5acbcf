"""### Compare the queues with the lake.

**Reads** Redis, the archive and the lake. **Writes** a report of every difference to `reports/queues/`, and with `repair` the
queues. An entry is *missing* in the queues; the queues alone remember that it ended (*unrecorded*); it has *ended* in the lake
and still waits; it is *extra*, unknown to a lake that knows younger ones; it is *overdue*, past its retention; it stands out of
order (*disordered*); or it is in flight and not queued (*stray*). Each was looked at once more, live, before it counts.
Compacted queues are compared by client, and told in the task's result (`compacted`).

**It runs** by its schedule, and after each run of `rebuild_queues`. **Trigger it** when somebody doubts the queues, or after
Redis or the lake was restored from a copy. With `repair`, what is missing is queued, what has ended is ended, what only the
queues remember is recorded, and what is out of order is put in order; the rest is left to `collect_garbage` or to you. It runs
beside the dispatchers. **Do not trigger it** on empty queues: `rebuild_queues` is quicker.

**When it fails** nothing has changed, or a part is repaired: clear the task.

**To back out** a repair there is nothing to do: it does what `rebuild_queues` would, and what the dispatchers would have done.

Owner: data-platform.
"""

from airflow.sdk import DAG, Param

from dags._defaults import DAG_DEFAULTS, REBUILT, by_cron, spark_job
from manifold.settings import load_settings

with DAG(
    "verify_queues",
    tags=["housekeeping", "queues", "repair"],
    doc_md=__doc__,
    params={"repair": Param(False, type="boolean", description="queue what is missing, end what has ended, put in order")},
    **DAG_DEFAULTS | by_cron(load_settings().verify_schedule, REBUILT),
):
    spark_job("verify", "{{ '--repair' if params['repair'] else '' }}")
