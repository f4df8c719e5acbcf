"""Registers the timetable of backfills with Airflow, which finds custom timetables among its plugins."""

from airflow.plugins_manager import AirflowPlugin

from dags._days import BackfillDays


class Days(AirflowPlugin):
    """The plugin, as Airflow loads it."""

    name = "days"
    timetables = [BackfillDays]  # noqa: RUF012  # as Airflow declares it
