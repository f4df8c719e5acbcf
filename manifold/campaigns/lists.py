"""Reads lists from files: the targets of a campaign, and observed absences of vehicles."""

from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from manifold.campaigns.quantities import duration_ms
from manifold.contracts.campaigns import Target
from manifold.contracts.messages import NAME_RULE, Refused, shown
from manifold.contracts.names import MAX_VIN, are_vins, is_vin

COLUMNS = ("vin", "zone", "wave")
NEVER = "never"  # the absence of a vehicle that was never seen
_REMEDY = "name a CSV file with a header, or a Parquet file, with the column vin, and zone and wave if they are known"


def read_targets(path: Path) -> list[Target] | Refused:
    """Read targets from a CSV file with a header, or from a Parquet file. The columns `zone` and `wave` may be absent."""
    try:
        columns = _columns(path)
    except OSError as exc:
        return Refused(f"cannot read {path} ({exc.strerror or exc}); name a file that exists")
    except (pa.ArrowException, UnicodeDecodeError) as exc:
        return Refused(f"{path} cannot be read as a list of targets ({exc}); {_REMEDY}")
    if isinstance(columns, Refused):
        return columns
    vins, zones, waves = columns
    if not are_vins(vins):
        row, bad_vin = next((row, vin) for row, vin in enumerate(vins, 1) if vin is None or not is_vin(vin))
        return Refused(f"{path}: vin {shown(bad_vin)} in row {row} must be 1 to {MAX_VIN} {NAME_RULE}")
    if not vins:
        return Refused(f"{path} lists no vehicle; a campaign needs at least one")
    valid_vins = cast("list[str]", vins)
    return [Target(vin, zone or None, wave or None) for vin, zone, wave in zip(valid_vins, zones, waves, strict=True)]


def read_absences(path: Path) -> list[int | None] | Refused:
    """Read observed absences of vehicles from a text file: on each line a duration such as 3h, or `never`.

    The absences are returned in milliseconds; `never` is returned as None.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        reason = getattr(exc, "strerror", None) or exc  # an error of the operating system has a short text without the path
        return Refused(f"cannot read {path} ({reason}); name a text file that exists")
    absences: list[int | None] = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        try:
            absences.append(None if text == NEVER else duration_ms(text))
        except ValueError as exc:
            return Refused(f"{path}: absence {shown(text)} in line {number} {exc}, or {NEVER}")
    return absences or Refused(f"{path} has no absence; write one a line, such as 3h, or {NEVER}")


def _columns(path: Path) -> list[list[str | None]] | Refused:
    """Return the columns `vin`, `zone` and `wave` of a file. If the file lacks `zone` or `wave`, its values are all None."""
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".parquet", ".pq"):
        return Refused(f"{path} is neither .csv nor .parquet; {_REMEDY}")
    content = pa.BufferReader(path.read_bytes())
    # Read without threads: a thread that still holds the content when Python exits would abort the process (apache/arrow#34314).
    if suffix == ".csv":
        read_options = pyarrow.csv.ReadOptions(use_threads=False)
        convert_options = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(COLUMNS, pa.string()))
        table = pyarrow.csv.read_csv(content, read_options=read_options, convert_options=convert_options)
    else:
        table = pyarrow.parquet.ParquetFile(content).read(use_threads=False)
    if "vin" not in table.column_names:
        return Refused(f"{path} has the columns {', '.join(table.column_names) or 'none'}; {_REMEDY}")
    columns: list[list[str | None]] = []
    for name in COLUMNS:
        if name in table.column_names:
            columns.append(table[name].cast(pa.string()).to_pylist())
        else:
            columns.append([None] * len(table))
    return columns
