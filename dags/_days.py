"""The timetable of backfills: a run for each day, and none by schedule."""

from typing import Any, Self

from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable
from pendulum import DateTime


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
        """The text that the UI shows as the schedule."""
        return "days of a backfill"

    def serialize(self) -> dict[str, Any]:
        """There is nothing to tell."""
        return {}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        """The timetable that `serialize` stored."""
        del data
        return cls()

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """The next day of a backfill, which asks to catch up; None for the scheduler, which by `catchup=False` does not.

        Airflow means midnights of its own time zone by the dates that it is given. Both ends go outwards to midnights of UTC: a
        day too many is over in seconds, and one that is left out is missed by nobody.
        """
        if not restriction.catchup:
            return None
        outwards = TimeRestriction(_midnight(restriction.earliest), _midnight(restriction.latest, after=True), catchup=True)
        return super().next_dagrun_info(last_automated_data_interval=last_automated_data_interval, restriction=outwards)


def _midnight(at: DateTime | None, *, after: bool = False) -> DateTime | None:
    """The midnight of UTC at this instant, or else the last one before it, or the first one after it."""
    if at is None:
        return None
    utc = at.in_timezone("UTC")
    day = utc.start_of("day")
    return day.add(days=1) if after and day < utc else day
