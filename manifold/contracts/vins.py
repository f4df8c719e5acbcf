"""Checks of VINs by ISO 3779, vectorised over bytes, without Spark."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

LENGTH, CHECK_PLACE = 17, 8
# 49 CFR 565.15(c), table III
LETTERS, VALUES = b"0123456789ABCDEFGHJKLMNPRSTUVWXYZ", bytes(map(int, "012345678912345678123457923456789"))
WEIGHTS = np.array((8, 7, 6, 5, 4, 3, 2, 10, 0, 9, 8, 7, 6, 5, 4, 3, 2), np.float32)  # table IV; float, because BLAS needs it
CHECK_DIGITS = np.frombuffer(b"0123456789X", np.uint8)

IN_CACHE = 8192  # VINs at a time, whose arrays fit into the processor's cache
_NO_VALUE = 255
_VALUE_OF = bytes(dict(zip(LETTERS, VALUES, strict=True)).get(byte, _NO_VALUE) for byte in range(256))

Flags = NDArray[np.bool_]


def are_iso_3779(vins: pa.StringArray) -> Flags:
    """Return for each VIN whether it is valid by ISO 3779 (`manifold.contracts.names.is_iso_3779_vin`); no nulls allowed."""
    parts = [_are_iso_3779(vins[first : first + IN_CACHE]) for first in range(0, len(vins), IN_CACHE)]
    return np.concatenate(parts) if parts else np.zeros(0, np.bool_)


def _are_iso_3779(vins: pa.StringArray) -> Flags:
    starts, content = _parts(vins)
    flags: Flags = np.diff(starts) == LENGTH
    found = np.frombuffer(content, np.uint8)
    if not flags.all():
        found = found[starts[:-1][flags][:, None] + np.arange(LENGTH)]
    places = found.reshape(-1, LENGTH)
    translated = places.tobytes().translate(_VALUE_OF)
    values = np.frombuffer(translated, np.uint8).reshape(-1, LENGTH)
    check = CHECK_DIGITS[(values.astype(np.float32) @ WEIGHTS).astype(np.int32) % len(CHECK_DIGITS)]
    of_letters = values.max(axis=1) != _NO_VALUE if _NO_VALUE in translated else True  # a search is quicker than the maximum
    flags[flags] = (places[:, CHECK_PLACE] == check) & of_letters
    return flags


def _parts(vins: pa.StringArray) -> tuple[NDArray[np.int32], bytes]:
    """Return the start offset of each string plus the end of the last, and the bytes of all."""
    _, offsets, content = vins.buffers()
    starts = np.frombuffer(offsets, np.int32)[vins.offset : vins.offset + len(vins) + 1]
    first, end = int(starts[0]), int(starts[-1])
    return starts - first, content.slice(first, end - first).to_pybytes() if content else b""
