"""The tasks of an ingest. Every DAG that ingests the archive has the same tasks, but selects other segments."""

from dags._defaults import PUBLISHED, QUALITY_RESULTS, QUEUES, discover_job, plain_job, spark_job
from dags._jobs import QualityReport

OPTIONS = ("{{ '' if params['flush'] else '--no-flush' }}", "{{ '--dry-run' if params['dry_run'] else '' }}")
# The driver's Java options depend on the size of the job, which `discover` measures.
DRIVER_OPTIONS = "{{ (ti.xcom_pull(task_ids='discover') or {}).get('java_options', '') }}"


def ingest_jobs(*selection: str) -> None:
    """Add the ingest tasks to the DAG whose block calls this; the DAG must have the params `flush` and `dry_run`.

    `selection` has the command-line arguments of the jobs that select segments, such as --from and --to.
    """
    discover = discover_job("discover", *selection, *OPTIONS)
    ingest = spark_job("ingest", *selection, "--no-flush", java_options=DRIVER_OPTIONS, outlets=[QUALITY_RESULTS])
    audit = plain_job("audit", links=[QualityReport()])
    publish = discover_job("publish", outlets=PUBLISHED)
    populate = spark_job("populate", java_options=DRIVER_OPTIONS, outlets=[QUEUES], trigger_rule="none_failed_min_one_success")
    discover >> ingest >> audit >> publish >> populate
    discover >> populate  # `discover` may skip all but `populate`: without new segments, the queues may still lag behind the lake
