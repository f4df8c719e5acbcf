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
_NO_VALUE = 255  # of a byte that may not occur in a VIN
_VALUE_OF = bytes(dict(zip(LETTERS, VALUES, strict=True)).get(byte, _NO_VALUE) for byte in range(256))

Flags = NDArray[np.bool_]


def are_iso_3779(vins: pa.StringArray) -> Flags:
    """Return for each VIN whether it is valid by ISO 3779 (`manifold.contracts.names.is_iso_3779_vin`); no nulls allowed."""
    parts = [_are_iso_3779(vins[first : first + VINS_PER_BATCH]) for first in range(0, len(vins), VINS_PER_BATCH)]
    return np.concatenate(parts) if parts else np.zeros(0, np.bool_)


def _are_iso_3779(vins: pa.StringArray) -> Flags:
    starts, content = _offsets_and_content(vins)
    has_right_length: Flags = np.diff(starts) == LENGTH
    characters = np.frombuffer(content, np.uint8)
    if not has_right_length.all():  # keep only the characters of VINs that have the right length
        first_characters = starts[:-1][has_right_length]
        characters = characters[first_characters[:, np.newaxis] + np.arange(LENGTH)]
    candidates = characters.reshape(-1, LENGTH)  # a row per VIN with the right length
    translated = candidates.tobytes().translate(_VALUE_OF)
    values = np.frombuffer(translated, np.uint8).reshape(-1, LENGTH)
    remainders = (values.astype(np.float32) @ WEIGHTS).astype(np.int32) % len(CHECK_DIGITS)
    is_valid = candidates[:, CHECK_INDEX] == CHECK_DIGITS[remainders]
    # VINs with a character that has no value are invalid. Usually there are none, which one search in all bytes shows; this is
    # quicker than the maximum of each row.
    if _NO_VALUE in translated:
        is_valid &= values.max(axis=1) != _NO_VALUE
    flags = np.zeros(len(vins), np.bool_)
    flags[has_right_length] = is_valid
    return flags


def _offsets_and_content(vins: pa.StringArray) -> tuple[NDArray[np.int32], bytes]:
    """Return the bytes of all strings, and the offset in these bytes of each string's start, followed by that of the end."""
    _, offsets, content = vins.buffers()
    starts = np.frombuffer(offsets, np.int32)[vins.offset : vins.offset + len(vins) + 1]
    first, end = int(starts[0]), int(starts[-1])
    if content is None:  # all strings are empty
        return starts - first, b""
    return starts - first, content.slice(first, end - first).to_pybytes()
