"""Which files of an archive tree are data, by path alone: one rule for ingest, freshness, checks and histories. Pure."""

from pathlib import PurePosixPath

PARQUET = ".parquet"
PARQUET_SUFFIXES = (PARQUET, ".pq")
JSON_LINES = (".jsonl", ".json", ".ndjson")
COMPRESSED = (".gz", ".zst")
SUFFIXES = (*PARQUET_SUFFIXES, *JSON_LINES, *(suffix + compressed for suffix in JSON_LINES for compressed in COMPRESSED))


def is_parquet(path: str) -> bool:
    """Whether the file name has a Parquet suffix, ignoring case."""
    return path.lower().endswith(PARQUET_SUFFIXES)


def is_finished(path: str) -> bool:
    """Whether no part of the path begins with `.` or `_`, which writers use for uncommitted files and folders."""
    return not any(part.startswith((".", "_")) for part in PurePosixPath(path).parts)


def is_data_file(path: str) -> bool:
    """Whether the file at this path, relative to the archive's root, contains messages."""
    return is_finished(path) and path.lower().endswith(SUFFIXES)
