"""The tasks of an ingest in their order, the same in every DAG that ingests the archive; the DAGs differ in the part of it."""

from dags._defaults import PUBLISHED, QUALITY_RESULTS, QUEUES, discover_job, plain_job, spark_job
from dags._jobs import QualityReport

OPTIONS = ("{{ '' if params['flush'] else '--no-flush' }}", "{{ '--dry-run' if params['dry_run'] else '' }}")
# How large the job is, only `discover` knows.
DRIVER = "{{ (ti.xcom_pull(task_ids='discover') or {}).get('java_options', '') }}"


def ingest_jobs(*part: str) -> None:
    """Make them, in the DAG that is being made, which has `flush` and `dry_run`. `part` are arguments that say what is taken."""
    discover = discover_job("discover", *part, *OPTIONS)
    ingest = spark_job("ingest", *part, "--no-flush", java_options=DRIVER, outlets=[QUALITY_RESULTS])
    audit = plain_job("audit", links=[QualityReport()])
    publish = discover_job("publish", outlets=PUBLISHED)
    populate = spark_job("populate", java_options=DRIVER, outlets=[QUEUES], trigger_rule="none_failed_min_one_success")
    discover >> ingest >> audit >> publish >> populate
    discover >> populate  # the queues may lag behind the lake where nothing is new
