"""### Take new archive segments into the lake as they come, in micro-batches.

**The alternative to `ingest_archives`** where tables must follow the archive within a minute: one Spark application stays up and
looks every `stream_seconds`. **Reads** and judges what `ingest_archives` does, and **Writes** the same tables by the same
transformations. Both may run: a segment counts once, whoever takes it.

**It is paused at first.** Unpaused, a run streams for `hours` and ends after its micro-batch; the next begins at once, so that
a new version of the pipelines is taken up without anybody's help. `/metrics` of the stream are on `stream_port`.

**Do not trigger it** beside a run of itself: there is one checkpoint, and Airflow keeps it to one run.

**When it fails** nothing of its last micro-batch is published; the retry does that micro-batch again. What breaks a rule is set
aside as in `ingest_archives`; only where that is much of a micro-batch it stops until the cause is gone: the log says why.

**To back out**: pause it, and let `ingest_archives` do the work. Its checkpoint (`<home>/stream`) may be deleted at any time.

Owner: data-platform.
"""

from datetime import timedelta

from airflow.sdk import DAG, Param

from dags._alerts import deadline_after
from dags._defaults import DAG_DEFAULTS, PUBLISHED, QUALITY_RESULTS, QUEUES, spark_job

MAX_DURATION = timedelta(hours=25)  # the longest `hours`, and one for the last micro-batch

with DAG(
    "stream_archives",
    schedule="@continuous",
    tags=["fanout", "lake", "queues"],
    doc_md=__doc__,
    params={"hours": Param(6, type="number", exclusiveMinimum=0, maximum=24, description="how long one run streams")},
    **DAG_DEFAULTS | {"is_paused_upon_creation": True, "deadline": deadline_after(MAX_DURATION)},
):
    spark_job(
        "stream",
        "--for-seconds",
        "{{ params['hours'] * 3600 }}",
        outlets=[*PUBLISHED, QUALITY_RESULTS, QUEUES],
        execution_timeout=MAX_DURATION,
        retries=10,
    )
