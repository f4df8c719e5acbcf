"""Checks of VINs by ISO 3779, vectorised over bytes, without Spark."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

LENGTH, CHECK_INDEX = 17, 8
# 49 CFR 565.15(c), table III
LETTERS, VALUES = b"0123456789ABCDEFGHJKLMNPRSTUVWXYZ", bytes(map(int, "012345678912345678123457923456789"))
WEIGHTS = np.array((8, 7, 6, 5, 4, 3, 2, 10, 0, 9, 8, 7, 6, 5, 4, 3, 2), np.float32)  # table IV; float, because BLAS needs it
CHECK_DIGITS = np.frombuffer(b"0123456789X", np.uint8)

VINS_PER_BATCH = 8192  # the arrays of one batch fit into the processor's cache
_NO_VALUE = 255
_VALUE_OF = bytes(dict(zip(LETTERS, VALUES, strict=True)).get(byte, _NO_VALUE) for byte in range(256))

Flags = NDArray[np.bool_]


def are_iso_3779(vins: pa.StringArray) -> Flags:
    """Return for each VIN whether it is valid by ISO 3779 (`manifold.contracts.names.is_iso_3779_vin`); no nulls allowed."""
    parts = [_are_iso_3779(vins[first : first + VINS_PER_BATCH]) for first in range(0, len(vins), VINS_PER_BATCH)]
    return np.concatenate(parts) if parts else np.zeros(0, np.bool_)


def _are_iso_3779(vins: pa.StringArray) -> Flags:
    starts, content = _offsets_and_content(vins)
    flags: Flags = np.diff(starts) == LENGTH
    characters = np.frombuffer(content, np.uint8)
    if not flags.all():  # keep the characters of the VINs with the right length only
        characters = characters[starts[:-1][flags][:, None] + np.arange(LENGTH)]
    rows = characters.reshape(-1, LENGTH)
    translated = rows.tobytes().translate(_VALUE_OF)
    values = np.frombuffer(translated, np.uint8).reshape(-1, LENGTH)
    check_digits = CHECK_DIGITS[(values.astype(np.float32) @ WEIGHTS).astype(np.int32) % len(CHECK_DIGITS)]
    # The search in all bytes is quicker than the maximum of each row, and usually finds nothing.
    has_valid_letters = values.max(axis=1) != _NO_VALUE if _NO_VALUE in translated else True
    flags[flags] = (rows[:, CHECK_INDEX] == check_digits) & has_valid_letters
    return flags


def _offsets_and_content(vins: pa.StringArray) -> tuple[NDArray[np.int32], bytes]:
    """Return the start offset of each string, followed by the end offset of the last string, and the bytes of all strings."""
    _, offsets, content = vins.buffers()
    starts = np.frombuffer(offsets, np.int32)[vins.offset : vins.offset + len(vins) + 1]
    first, end = int(starts[0]), int(starts[-1])
    return starts - first, content.slice(first, end - first).to_pybytes() if content else b""
