"""The timetable of DAGs that only backfills run: one run per day, and no scheduled runs."""

from typing import Any, Self

from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable
from pendulum import DateTime


class BackfillDays(CronDataIntervalTimetable):
    """A timetable whose intervals are UTC days. Only a backfill creates runs; the scheduler creates none.

    Airflow backfills only DAGs that have a schedule and are not paused, but it would also start such DAGs by schedule. This
    timetable prevents that. `plugins/days.py` registers it.
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
        """The timetable's state: empty, because it has none."""
        return {}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        """The timetable that `serialize` stored."""
        del data
        return cls()

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """The run of a backfill's next day; None for the scheduler.

        A backfill calls this with `catchup=True`. The scheduler calls it with False, because these DAGs are declared so.

        Airflow takes the dates of a backfill as midnights of its own time zone. Therefore the restriction is widened at both ends
        to midnights of UTC: an extra day takes only seconds, while nobody would notice a missing day.
        """
        if not restriction.catchup:
            return None
        first_day = _midnight_before(restriction.earliest)
        last_day = _midnight_after(restriction.latest)
        widened = TimeRestriction(first_day, last_day, catchup=True)
        return super().next_dagrun_info(last_automated_data_interval=last_automated_data_interval, restriction=widened)


def _midnight_before(instant: DateTime | None) -> DateTime | None:
    """The last midnight (UTC) at or before this instant; None for None, which means no limit."""
    return None if instant is None else instant.in_timezone("UTC").start_of("day")


def _midnight_after(instant: DateTime | None) -> DateTime | None:
    """The first midnight (UTC) at or after this instant; None for None, which means no limit."""
    midnight = _midnight_before(instant)
    if instant is None or midnight is None:
        return None
    return midnight if midnight == instant else midnight.add(days=1)
