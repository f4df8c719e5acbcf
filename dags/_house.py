"""What every DAG of this house has in common: an owner, retries, and how a pipeline's job is run.

A job is a stage of `python -m pipelines`. The connection `spark_default` says where Spark runs: a cluster changes it, and no DAG.
"""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import Context
from airflow.providers.standard.operators.bash import BashOperator

PIPELINES = Path(__file__).parents[1] / "pipelines" / "__main__.py"
START = datetime(2026, 1, 1, tzinfo=UTC)
DEFAULTS: dict[str, Any] = {
    "owner": "data-platform",
    "retries": 2,
    "retry_delay": timedelta(seconds=20),
    "retry_exponential_backoff": True,
    "max_retry_delay": timedelta(minutes=5),
    "execution_timeout": timedelta(hours=2),
}
# The id of a run names its branches and its pages; Airflow makes it the same on every retry.
RUN = ("--run-id", "{{ run_id }}")


class SparkJob(SparkSubmitOperator):
    """SparkSubmitOperator, but an argument whose template comes out empty is not there."""

    def execute(self, context: Context) -> None:
        """Submit, and wait for the end."""
        self.application_args = [argument for argument in self.application_args or [] if argument]
        super().execute(context)


def spark_job(job: str, *arguments: str) -> SparkJob:
    """The task that runs one stage of the pipelines on Spark."""
    return SparkJob(
        task_id=job,
        conn_id="spark_default",
        application=str(PIPELINES),
        name=f"manifold-{job}",
        application_args=[job, *RUN, *arguments],
        doc=f"spark-submit pipelines/__main__.py {job}",
    )


def plain_job(job: str) -> BashOperator:
    """The task that runs one stage without Spark; Airflow allows no character in a run id that a shell would mind."""
    return BashOperator(
        task_id=job, bash_command=f"{sys.executable} -m pipelines {job} {' '.join(RUN)}", doc=f"python -m pipelines {job}"
    )
