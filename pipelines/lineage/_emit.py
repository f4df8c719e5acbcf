"""`@emits_lineage`: emits a job's start, its inputs and outputs, and how the job ended.

The decorator is applied when a stage's module is imported, so this module imports the code that builds events only when a job
emits one.
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
    """Emit lineage for each call of the decorated function, as a run of the job `manifold.<job>`.

    The function must take the settings as one of its arguments. `reads` lists inputs, and `writes` outputs, in addition to the
    tables that the function changes. `unless` names a keyword argument such as `dry_run`: if it is true, the function changes
    nothing, and no lineage is emitted. Errors while emitting lineage are logged and do not fail the function. Events do not
    contain the function's arguments.
    """

    def decorate(work: Callable[P, R]) -> Callable[P, R]:
        @wraps(work)
        def with_lineage(*args: P.args, **kwargs: P.kwargs) -> R:
            settings = next(argument for argument in (*args, *kwargs.values()) if isinstance(argument, Settings))
            is_enabled = bool(settings.lineage_url.get_secret_value())
            changes_nothing = bool(kwargs.get(unless))
            if not is_enabled or changes_nothing:
                return work(*args, **kwargs)
            from pipelines.lineage.jobs import JobRun

            return JobRun(settings, job, reads, writes).execute(lambda: work(*args, **kwargs))

        return with_lineage

    return decorate
