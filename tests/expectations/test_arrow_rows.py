"""Queries over rows in memory and in files: in processes that fork, and of files that lie."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from expectations._arrow_rows import OFFENDERS, ArrowRows, ask

FORKS = """
import os, sys
import pyarrow as pa
from expectations._arrow_rows import ask
rows = pa.table({"n": [1, 2]})
counted = lambda: ask("SELECT count(*) AS n FROM rows", rows=rows)["n"].to_pylist()
assert counted() == [2]
child = os.fork()
assert counted() == [2]
sys.exit(0 if child == 0 else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_process_that_was_forked_asks_and_ends() -> None:
    assert subprocess.run([sys.executable, "-c", FORKS], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize(
    ("condition", "values", "says", "instead"),
    [
        pytest.param("n <= 60", [5, 100], 100, 50, id="a greatest value"),
        pytest.param("n >= 60", [70, 5], 5, 65, id="a least value"),
        pytest.param('"n" IS NOT NULL', [7, None], 1, 0, id="a number of nulls"),
    ],
)
def test_statistics_of_a_file_are_not_believed(
    tmp_path: Path, condition: str, values: list[int | None], says: int, instead: int
) -> None:
    file = tmp_path / "lies.parquet"
    pq.write_table(pa.table({"n": pa.array(values, pa.int64())}), file, use_dictionary=False)
    _lie(file, says, instead)
    rows = ArrowRows(ds.dataset(file, format="parquet"))
    assert rows.breaking(condition).count() == 1
    assert rows.samples(["n"], 2) == tuple(f'{{"n":{"null" if n is None else n}}}' for n in values)


def _lie(file: Path, says: int, instead: int) -> None:
    """Change a number in the statistics at the end of the file: a least or greatest value, or how many are null."""
    content = file.read_bytes()
    length = int.from_bytes(content[-8:-4], "little")
    body, footer = content[: -8 - length], content[-8 - length : -8]
    wide = (says.to_bytes(8, "little"), instead.to_bytes(8, "little"))
    # In Thrift's compact protocol: the field after the one before it, an i64, in zigzag.
    short = (bytes((0x16, 2 * says)), bytes((0x16, 2 * instead)))
    old, new = wide if wide[0] in footer else short
    assert old in footer, footer
    file.write_bytes(body + footer.replace(old, new) + content[-8:])
    column = pq.read_metadata(file).row_group(0).column(0).statistics
    assert instead in {column.min, column.max, column.null_count}


def test_keys_whose_hashes_were_made_alike_hide_none_that_is_there_twice() -> None:
    """DuckDB's hash of an integer can be turned around, and whoever writes an archive chooses the integers."""
    alike = [_with_hash(number) for number in range(2 * (OFFENDERS + 100))]
    twice = _with_hash(2**64 - 5)
    rows = ArrowRows(pa.table({"n": pa.array([*alike, twice, twice], pa.int64())}))
    (hashes,) = ask(
        "SELECT count(DISTINCT hash(n) >> 1) AS n FROM rows", rows=pa.table({"n": pa.array(alike, pa.int64())})
    ).to_pylist()
    assert hashes["n"] == len(alike) // 2, "as the test has it"
    assert rows.repeated(["n"]).keys(["n"], 2) == ((twice,),)


def _with_hash(value: int) -> int:
    """The integer that DuckDB hashes to this: its function, backwards."""
    for _ in range(2):
        value ^= value >> 32
        value = value * pow(0xD6E8FEB86659FD93, -1, 1 << 64) % (1 << 64)
    value ^= value >> 32
    return value - (1 << 64) if value >> 63 else value
