"""Registers the deadline reference with Airflow, which finds such classes among its plugins."""

from airflow.plugins_manager import AirflowPlugin

from dags._alerts import RunQueued


class Deadlines(AirflowPlugin):
    """What Airflow reads of this file."""

    name = "deadlines"
    deadline_references = [RunQueued]  # noqa: RUF012  # as Airflow declares it
