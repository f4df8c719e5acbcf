"""Which files of an archive's tree are data, by their paths alone: one rule for ingest, freshness, check and histories. Pure."""

from pathlib import PurePosixPath

PARQUET = ".parquet"
PARQUET_SUFFIXES = (PARQUET, ".pq")
JSON_LINES = (".jsonl", ".json", ".ndjson")
COMPRESSED = (".gz", ".zst")
SUFFIXES = (*PARQUET_SUFFIXES, *JSON_LINES, *(line + zipped for line in JSON_LINES for zipped in COMPRESSED))


def is_parquet(path: str) -> bool:
    """Whether the file's name says Parquet, in any case of letters."""
    return path.lower().endswith(PARQUET_SUFFIXES)


def is_finished(path: str) -> bool:
    """Whether no part of the path begins with `.` or `_`, as the files and folders of writers that have not committed do."""
    return not any(part.startswith((".", "_")) for part in PurePosixPath(path).parts)


def is_data_file(path: str) -> bool:
    """Whether the file at this path below the archive's root holds messages."""
    return is_finished(path) and path.lower().endswith(SUFFIXES)
