"""Rows that have one of many values in a column, read a few row groups at a time.

A PyIceberg scan loads every row group that may have such a row before it returns the first one, so its memory grows with
the number of values and with the distance of their rows. Here files and row groups are chosen by the bounds in their metadata,
and only a few MiB of a file's row groups are in memory at once.
"""

from bisect import bisect_left, bisect_right
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

SCAN_BATCH_SIZE = 64  # values per scan, for a file that must be left to PyIceberg, which holds all their rows in memory
BUFFER_BYTES = 1 << 20
Value = str | int  # a string, or an instant as microseconds since 1970


class OpenFile:
    """One open Parquet file."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.parquet = pq.ParquetFile(source, pre_buffer=True)

    def rows(self, groups: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Read all rows of these row groups."""
        return self.parquet.read_row_groups(list(groups), columns=list(columns), use_threads=False)

    def batches(self, groups: Sequence[int], column: str, *, rows: int, bytes_: int) -> Iterator[pa.Array]:
        """Yield one column of these row groups, at most `rows` at a time. If it takes more than `bytes_`, parts are loaded."""
        place, file = self.parquet.schema_arrow.get_field_index(column), self.parquet
        stored = sum(file.metadata.row_group(group).column(place).total_compressed_size for group in groups)
        if stored > bytes_:
            file = pq.ParquetFile(self._source, metadata=file.metadata, pre_buffer=False, buffer_size=BUFFER_BYTES)
        for batch in file.iter_batches(rows, row_groups=list(groups), columns=[column], use_threads=False):
            yield batch.column(0)


class Places:
    """Locates the rows of a table's main that have one of `values` in `column`."""

    def __init__(self, table: IcebergTable, column: str, values: Iterable[Value]) -> None:
        self.table, self._column = table, column
        self._values: list[Any] = sorted(set(values))
        self._field = table.schema().find_field(column)

    def files(self) -> list[FileScanTask]:
        """The files that may have such rows, those with the lowest values first."""
        if not self._values:
            return []
        lowest, highest = (_literal(value) for value in (self._values[0], self._values[-1]))
        scan = self.table.scan(
            And(where(GreaterThanOrEqual, self._column, lowest), where(LessThanOrEqual, self._column, highest))
        )
        bounded = [(self._bounds(task), task) for task in scan.plan_files()]
        near = [(low, task) for (low, high), task in bounded if self._has_value(low, high)]
        return [task for _, task in sorted(near, key=lambda each: (each[0] is not None, each[0]))]

    @contextmanager
    def opened(self, task: FileScanTask, columns: Sequence[str]) -> Iterator[OpenFile | None]:
        """The open file; None if only PyIceberg can tell its rows: it has deletes, lacks a column, or is not Parquet."""
        if task.delete_files or task.file.file_format != FileFormat.PARQUET:
            yield None
            return
        with self.table.io.new_input(task.file.file_path).open() as source:
            file = OpenFile(source)
            yield file if {*columns, self._column} <= set(file.parquet.schema_arrow.names) else None

    def groups(self, file: OpenFile, columns: Sequence[str], bytes_: int) -> Iterator[list[int]]:
        """Yield the row groups that may have such rows, up to `bytes_` of these columns together, at least one."""
        metadata, names = file.parquet.metadata, file.parquet.schema_arrow.names
        places, mine = [names.index(column) for column in columns], names.index(self._column)

        def may_have(number: int) -> bool:
            bounds = metadata.row_group(number).column(mine).statistics
            return bounds is None or not bounds.has_min_max or self._has_value(_value(bounds.min), _value(bounds.max))

        def size_of(number: int) -> int:
            group = metadata.row_group(number)
            return sum(group.column(place).total_uncompressed_size for place in places)

        return grouped(filter(may_have, range(metadata.num_row_groups)), size_of, bytes_)

    def scanned(self, task: FileScanTask, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Read the rows with PyIceberg's own scan, for a few values at a time."""
        for start in range(0, len(self._values), SCAN_BATCH_SIZE):
            some = In(term=self._column, literals={_literal(value) for value in self._values[start : start + SCAN_BATCH_SIZE]})
            yield read_files(self.table, [task], columns, some)

    def rows(self, columns: Sequence[str], bytes_: int) -> Iterator[pa.Table]:
        """Yield the rows with one of the values, in pieces of about `bytes_`; for small columns."""
        for task in self.files():
            with self.opened(task, columns) as file:
                if file is None:
                    yield from self.scanned(task, columns)
                    continue
                for groups in self.groups(file, columns, bytes_):
                    rows = file.rows(groups, columns)
                    yield rows.take(places_of(rows, self._column, self._values))

    def _bounds(self, task: FileScanTask) -> tuple[Any, Any]:
        lower, upper = ((of or {}).get(self._field.field_id) for of in (task.file.lower_bounds, task.file.upper_bounds))
        kind = self._field.field_type
        if lower is None or upper is None or not isinstance(kind, PrimitiveType):
            return None, None
        return from_bytes(kind, lower), from_bytes(kind, upper)

    def _has_value(self, low: Any, high: Any) -> bool:
        """Whether a value lies within bounds, which may be wider than the rows' own."""
        return low is None or bisect_left(self._values, low) < bisect_right(self._values, high)


def places_of(rows: pa.Table, column: str, values: Iterable[Value]) -> pa.Array:
    """The indices of the rows whose `column`, a string, is one of `values`."""
    return pc.indices_nonzero(pc.is_in(rows[column], value_set=pa.array(values, rows.schema.field(column).type)))


def micros(instants: pa.ChunkedArray) -> list[int]:
    """Instants, none of them null, as microseconds since 1970."""
    found: list[int] = instants.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    return found


def _value(bound: Any) -> Any:
    return datetime_to_micros(bound) if isinstance(bound, datetime) else bound


def _literal(value: Value) -> str:
    return micros_to_timestamptz(value).isoformat() if isinstance(value, int) else value
