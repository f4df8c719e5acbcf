"""Reports Redis errors of Spark workers as rows, because an exception on a worker fills pages of Spark's log."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from redis import exceptions
from redis.exceptions import RedisError

# Columns of names, one per line.
SPOILT = "spoilt"  # owners with a key of another type
TRIGGERS = "spoilt_triggers"  # keys of triggers that have another type
NAME_COLUMNS = (SPOILT, TRIGGERS)
Batches = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


def reporting_errors(work: Batches, counts: Sequence[str]) -> Batches:
    """Wrap a function whose rows have the columns `counts` and `NAME_COLUMNS`, so that it reports Redis errors.

    The rows of the wrapped function also have the column `problem`, which is null. If a Redis error ends the function, the last
    row has the error in `problem`.
    """
    text_columns = [(name, pa.string()) for name in ("problem", *NAME_COLUMNS)]
    count_columns = [(name, pa.int64()) for name in counts]
    schema = pa.schema([*text_columns, *count_columns])

    def reporting(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        remaining = iter(batches)
        try:
            for rows in work(remaining):
                yield pa.RecordBatch.from_pylist(rows.to_pylist(), schema=schema)
        except RedisError as exc:
            yield pa.RecordBatch.from_pylist([{"problem": f"{type(exc).__name__}: {exc}"}], schema=schema)
            for _ in remaining:  # Spark expects that all input is consumed
                pass

    return reporting


def error_of(problem: str) -> RedisError:
    """Make the Redis error that a worker reported in `problem`."""
    class_name, _, message = problem.partition(": ")
    error_class: type[RedisError] = getattr(exceptions, class_name, RedisError)
    return error_class(message)
