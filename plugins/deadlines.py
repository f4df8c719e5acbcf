"""Registers the deadline reference with Airflow, which finds such classes among its plugins."""

from airflow.plugins_manager import AirflowPlugin

from dags._alerts import RunQueued


class Deadlines(AirflowPlugin):
    """The plugin, as Airflow loads it."""

    name = "deadlines"
    deadline_references = [RunQueued]  # noqa: RUF012  # as Airflow declares it
