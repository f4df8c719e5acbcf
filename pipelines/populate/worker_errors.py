"""Reports a Redis error of a Spark worker in a row, because an exception would fill pages of Spark's log."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from redis import exceptions
from redis.exceptions import RedisError

SPOILT = "spoilt"  # column: owners with a key of another type, one per line
TRIGGERS = "spoilt_triggers"  # column: trigger keys of another type, one per line
WORDS = (SPOILT, TRIGGERS)
Batches = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


def reporting_errors(work: Batches, names: Sequence[str]) -> Batches:
    """Wrap `work`: its rows of counts (`names`) and words get a column `problem`: null, or the Redis error that ended it."""
    schema = pa.schema([*((name, pa.string()) for name in ("problem", *WORDS)), *((name, pa.int64()) for name in names)])

    def reporting(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        left = iter(batches)
        try:
            for counts in work(left):
                yield pa.RecordBatch.from_pylist(counts.to_pylist(), schema=schema)
        except RedisError as exc:
            yield pa.RecordBatch.from_pylist([{"problem": f"{type(exc).__name__}: {exc}"}], schema=schema)
            for _ in left:  # Spark expects that all input is consumed
                pass

    return reporting


def error_of(problem: str) -> RedisError:
    """Recreate the error that a worker reported in `problem`."""
    name, _, message = problem.partition(": ")
    error: type[RedisError] = getattr(exceptions, name, RedisError)
    return error(message)
