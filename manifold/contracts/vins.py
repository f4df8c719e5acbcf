"""Checks of VINs by ISO 3779, vectorised over bytes: a tenth of a microsecond per VIN, without Spark."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

LENGTH, CHECK_PLACE = 17, 8
# 49 CFR 565.15(c), table III
LETTERS, VALUES = b"0123456789ABCDEFGHJKLMNPRSTUVWXYZ", bytes(map(int, "012345678912345678123457923456789"))
WEIGHTS = np.array((8, 7, 6, 5, 4, 3, 2, 10, 0, 9, 8, 7, 6, 5, 4, 3, 2), np.float32)  # table IV; float, because BLAS needs it
CHECK_DIGITS = np.frombuffer(b"0123456789X", np.uint8)

_NO_VALUE = 255
_VALUE_OF = bytes(dict(zip(LETTERS, VALUES, strict=True)).get(byte, _NO_VALUE) for byte in range(256))

Flags = NDArray[np.bool_]


def are_iso_3779(vins: pa.StringArray) -> Flags:
    """Return for each VIN whether it is valid by ISO 3779 (`manifold.contracts.names.is_iso_3779_vin`); no nulls allowed."""
    starts, content = _parts(vins)
    flags: Flags = np.diff(starts) == LENGTH
    found = np.frombuffer(content, np.uint8)
    if not flags.all():
        found = found[starts[:-1][flags][:, None] + np.arange(LENGTH)]
    places = found.reshape(-1, LENGTH)
    values = np.frombuffer(places.tobytes().translate(_VALUE_OF), np.uint8).reshape(-1, LENGTH)
    check = CHECK_DIGITS[(values.astype(np.float32) @ WEIGHTS).astype(np.int32) % len(CHECK_DIGITS)]
    flags[flags] = (places[:, CHECK_PLACE] == check) & (values.max(axis=1, initial=0) != _NO_VALUE)
    return flags


def iso_3779_flags(vins: pa.Array) -> pa.Array:
    """Return the same as an Arrow array, with null as valid; for Spark workers, which have few libraries."""
    filled = pc.fill_null(vins.cast(pa.string()), "")
    return pc.or_(pa.array(are_iso_3779(filled)), vins.is_null())


def _parts(vins: pa.StringArray) -> tuple[NDArray[np.int32], bytes]:
    """Return the start offset of each string plus the end of the last, and the bytes of all."""
    _, offsets, content = vins.buffers()
    starts = np.frombuffer(offsets, np.int32)[vins.offset : vins.offset + len(vins) + 1]
    first, end = int(starts[0]), int(starts[-1])
    return starts - first, content.slice(first, end - first).to_pybytes() if content else b""
