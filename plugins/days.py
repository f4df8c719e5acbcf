"""Makes known to Airflow what days a backfill has: Airflow looks for schedules of others' making among its plugins."""

from airflow.plugins_manager import AirflowPlugin

from dags._days import BackfillDays


class Days(AirflowPlugin):
    """What Airflow reads of this file."""

    name = "days"
    timetables = [BackfillDays]  # noqa: RUF012  # as Airflow declares it
