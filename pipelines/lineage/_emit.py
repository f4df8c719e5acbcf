"""`@emits_lineage`: a job that changes tables or queues tells that it began, what it read and wrote, and how it ended.

Stages decorate their functions with it, so nothing is loaded here before there is an event to send.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from manifold.settings import Settings
from pipelines.lineage._place import Place

if TYPE_CHECKING:
    from manifold.contracts.tables import Table

P = ParamSpec("P")
R = TypeVar("R")


def emits_lineage(
    job: str, *, reads: "Sequence[Table | Place]" = (), writes: Sequence[Place] = (), unless: str = ""
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Tell of each run of a function that takes the settings, as the job `manifold.<job>`.

    `reads` are inputs besides the tables that it changes, `writes` outputs besides them; `unless` names an argument with which it
    changes nothing, and is not told. Nothing that goes wrong in telling reaches the job, and none of its arguments is told.
    """

    def decorate(work: Callable[P, R]) -> Callable[P, R]:
        @wraps(work)
        def telling(*args: P.args, **kwargs: P.kwargs) -> R:
            settings = next(each for each in (*args, *kwargs.values()) if isinstance(each, Settings))
            if not settings.lineage_url.get_secret_value() or kwargs.get(unless):
                return work(*args, **kwargs)
            from pipelines.lineage.jobs import JobRun

            return JobRun(settings, job, reads, writes).of(lambda: work(*args, **kwargs))

        return telling

    return decorate
