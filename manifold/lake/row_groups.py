"""Reads the rows that have one of many values in a column, a few row groups at a time.

A PyIceberg scan loads every row group that may have a matching row before it returns the first row. Its memory therefore grows
with the number of row groups over which the matching rows are spread. The classes here select files and row groups by the bounds
in their metadata, and hold only a few MiB of row groups in memory at once.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import And, GreaterThanOrEqual, In, LessThanOrEqual
from pyiceberg.manifest import FileFormat
from pyiceberg.table import FileScanTask
from pyiceberg.table import Table as IcebergTable
from pyiceberg.types import PrimitiveType
from pyiceberg.utils.datetime import datetime_to_micros, micros_to_timestamptz

from manifold.lake.catalog import where
from manifold.lake.data_files import read_files
from manifold.lake.grouping import grouped

# The maximum number of values per scan, for a file that only PyIceberg can read. A scan holds all matching rows in memory.
SCAN_BATCH_SIZE = 64
BUFFER_BYTES = 1 << 20
Value = str | int  # a string, or an instant in microseconds since 1970


class OpenFile:
    """One open Parquet file."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.parquet = pq.ParquetFile(source, pre_buffer=True)

    def rows(self, groups: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Read all rows of these row groups."""
        return self.parquet.read_row_groups(list(groups), columns=list(columns), use_threads=False)

    def batches(self, groups: Sequence[int], column: str, *, rows_per_batch: int, max_loaded_bytes: int) -> Iterator[pa.Array]:
        """Yield one column of these row groups, in batches of at most `rows_per_batch` values.

        If the compressed column has at most `max_loaded_bytes` bytes, it is loaded at once, otherwise in parts of `BUFFER_BYTES`.
        """
        file = self.parquet
        index = file.schema_arrow.get_field_index(column)
        compressed_bytes = sum(file.metadata.row_group(group).column(index).total_compressed_size for group in groups)
        if compressed_bytes > max_loaded_bytes:
            file = pq.ParquetFile(self._source, metadata=file.metadata, pre_buffer=False, buffer_size=BUFFER_BYTES)
        for batch in file.iter_batches(rows_per_batch, row_groups=list(groups), columns=[column], use_threads=False):
            yield batch.column(0)


class RowLookup:
    """Finds the rows of a table's main branch that have one of `values` in `column`, called the matching rows below."""

    def __init__(self, table: IcebergTable, column: str, values: Iterable[Value]) -> None:
        self.table, self._column = table, column
        self._values: list[Any] = sorted(set(values))
        self._field = table.schema().find_field(column)

    def files(self) -> list[FileScanTask]:
        """The files that may have matching rows, in order of their lower bounds; files without bounds come first."""
        if not self._values:
            return []
        lowest, highest = _literal(self._values[0]), _literal(self._values[-1])
        scan = self.table.scan(
            And(where(GreaterThanOrEqual, self._column, lowest), where(LessThanOrEqual, self._column, highest))
        )
        without_bounds: list[FileScanTask] = []
        with_bounds: list[tuple[Any, FileScanTask]] = []  # (lower bound, file)
        for task in scan.plan_files():
            lower, upper = self._bounds(task)
            if lower is None:
                without_bounds.append(task)
            elif self._may_match(lower, upper):
                with_bounds.append((lower, task))
        with_bounds.sort(key=lambda candidate: candidate[0])
        return [*without_bounds, *(task for _, task in with_bounds)]

    @contextmanager
    def opened(self, task: FileScanTask, columns: Sequence[str]) -> Iterator[OpenFile | None]:
        """Open a file for the block, to read these columns. Yield None if only PyIceberg can read it: use `scanned` then.

        These are files that have deletes, lack a column, or are not Parquet.
        """
        if task.delete_files or task.file.file_format != FileFormat.PARQUET:
            yield None
            return
        with self.table.io.new_input(task.file.file_path).open() as source:
            file = OpenFile(source)
            has_columns = {*columns, self._column} <= set(file.parquet.schema_arrow.names)
            yield file if has_columns else None

    def groups(self, file: OpenFile, columns: Sequence[str], max_bytes: int) -> Iterator[list[int]]:
        """Yield lists of row groups that may have matching rows.

        The given columns of the row groups in a list have at most `max_bytes` uncompressed bytes; a larger row group is alone.
        """
        metadata = file.parquet.metadata
        names = file.parquet.schema_arrow.names
        key_index = names.index(self._column)
        column_indices = [names.index(column) for column in columns]

        def may_match(group: int) -> bool:
            statistics = metadata.row_group(group).column(key_index).statistics
            if statistics is None or not statistics.has_min_max:
                return True
            return self._may_match(_value(statistics.min), _value(statistics.max))

        def size_of(group: int) -> int:
            row_group = metadata.row_group(group)
            return sum(row_group.column(index).total_uncompressed_size for index in column_indices)

        candidates = filter(may_match, range(metadata.num_row_groups))
        return grouped(candidates, size_of, max_bytes)

    def scanned(self, task: FileScanTask, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the matching rows of a file by PyIceberg's own scans, each for up to `SCAN_BATCH_SIZE` values."""
        for start in range(0, len(self._values), SCAN_BATCH_SIZE):
            values = self._values[start : start + SCAN_BATCH_SIZE]
            row_filter = In(term=self._column, literals={_literal(value) for value in values})
            yield read_files(self.table, [task], columns, row_filter)

    def rows(self, columns: Sequence[str], max_bytes: int) -> Iterator[pa.Table]:
        """Yield the matching rows of all files, decoding about `max_bytes` bytes at once. `column` must be a string column."""
        for task in self.files():
            with self.opened(task, columns) as file:
                if file is None:
                    yield from self.scanned(task, columns)
                    continue
                for groups in self.groups(file, columns, max_bytes):
                    candidates = file.rows(groups, columns)
                    yield candidates.take(indices_of(candidates, self._column, self._values))

    def _bounds(self, task: FileScanTask) -> tuple[Any, Any]:
        """The lower and upper bound of the column in a file; (None, None) if one of them is unknown."""
        lower = (task.file.lower_bounds or {}).get(self._field.field_id)
        upper = (task.file.upper_bounds or {}).get(self._field.field_id)
        field_type = self._field.field_type
        if lower is None or upper is None or not isinstance(field_type, PrimitiveType):
            return None, None
        return from_bytes(field_type, lower), from_bytes(field_type, upper)

    def _may_match(self, lower: Any, upper: Any) -> bool:
        """Whether one of the values is within these inclusive bounds."""
        index = bisect_left(self._values, lower)  # of the smallest value that is not below the lower bound
        return index < len(self._values) and bool(self._values[index] <= upper)


def indices_of(rows: pa.Table, column: str, values: Iterable[Value]) -> pa.Array:
    """The indices of the rows whose string column `column` has one of these values."""
    value_set = pa.array(values, rows.schema.field(column).type)
    return pc.indices_nonzero(pc.is_in(rows[column], value_set=value_set))


def micros(instants: pa.ChunkedArray) -> list[int]:
    """Convert instants, none of them null, to microseconds since 1970."""
    converted: list[int] = instants.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    return converted


def _value(bound: Any) -> Any:
    """A bound from Parquet statistics as a `Value`: instants are converted to microseconds since 1970."""
    return datetime_to_micros(bound) if isinstance(bound, datetime) else bound


def _literal(value: Value) -> str:
    """A value as a literal of PyIceberg's filters: instants are converted to ISO 8601."""
    return micros_to_timestamptz(value).isoformat() if isinstance(value, int) else value
