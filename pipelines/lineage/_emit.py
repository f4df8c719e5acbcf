"""`@emits_lineage`: emits the start of a job that changes tables or queues, its inputs and outputs, and how it ended.

Stages decorate their functions with it, so nothing is imported here before there is an event to send.
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
    """Emit lineage for each run of a function that takes the settings, as the job `manifold.<job>`.

    `reads` are inputs besides the tables that it changes, `writes` outputs besides them; with the argument named by `unless`, it
    changes nothing and emits nothing. Errors in emitting do not reach the job, and none of its arguments is emitted.
    """

    def decorate(work: Callable[P, R]) -> Callable[P, R]:
        @wraps(work)
        def with_lineage(*args: P.args, **kwargs: P.kwargs) -> R:
            settings = next(each for each in (*args, *kwargs.values()) if isinstance(each, Settings))
            if not settings.lineage_url.get_secret_value() or kwargs.get(unless):
                return work(*args, **kwargs)
            from pipelines.lineage.jobs import JobRun

            return JobRun(settings, job, reads, writes).of(lambda: work(*args, **kwargs))

        return with_lineage

    return decorate
