"""A schedule for backfills alone: days."""

from typing import Any, Self

from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable


class BackfillDays(CronDataIntervalTimetable):
    """Days of UTC, for which a backfill makes a run each; nothing starts by itself. `plugins/days.py` registers it.

    Airflow backfills only what has a schedule and is not paused, and would start that by itself, too.
    """

    can_be_scheduled = False
    description = "Each day of a backfill, from midnight to midnight (UTC)"

    def __init__(self) -> None:
        super().__init__("0 0 * * *", timezone="UTC")

    @property
    def summary(self) -> str:
        """What the UI shows as the schedule."""
        return "days of a backfill"

    def serialize(self) -> dict[str, Any]:
        """There is nothing to tell."""
        return {}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        """As it was."""
        del data
        return cls()

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """The next day of a backfill, which asks to catch up; None for the scheduler, which by `catchup=False` does not."""
        if not restriction.catchup:
            return None
        return super().next_dagrun_info(last_automated_data_interval=last_automated_data_interval, restriction=restriction)
