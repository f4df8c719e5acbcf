"""Owners, request ids and data ids, and the rules for valid names."""

import re
from collections.abc import Sequence
from typing import NewType

Owner = NewType("Owner", str)  # a VIN (fanout), or an MQTT client id (ECQ)
RequestId = NewType("RequestId", str)
DataId = NewType("DataId", str)

MAX_VIN, MAX_ID = 64, 128
SERVICE_PREFIX = "sdv-"  # client ids of Manifold's services and of platform publishers; all others are vehicles
RESERVED_CLIENT_IDS = frozenset({"w", "r"})  # levels of $ECQ/…, for writes and rewinds; no client may have them as its id

_NAME = r'[!"$-*,\-.0-~]'  # printable ASCII without space, and without + # /, which would change the topic that contains the name
VIN_PATTERN = re.compile(rf"{_NAME}{{1,{MAX_VIN}}}")
ID_PATTERN = re.compile(rf"{_NAME}{{1,{MAX_ID}}}")
_VIN_LINES = re.compile(rf"(?:{_NAME}{{1,{MAX_VIN}}}+\n)*+")

_ISO_3779 = re.compile(r"[A-HJ-NPR-Z0-9]{17}")
_TRANSLITERATION = dict(
    zip("ABCDEFGHJKLMNPRSTUVWXYZ", (1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 7, 9, 2, 3, 4, 5, 6, 7, 8, 9), strict=True)
)
_WEIGHTS = (8, 7, 6, 5, 4, 3, 2, 10, 0, 9, 8, 7, 6, 5, 4, 3, 2)


def is_vin(text: str) -> bool:
    """Whether `text` may be a VIN here: 1 to 64 printable ASCII characters without space, `+`, `#`, `/`."""
    return VIN_PATTERN.fullmatch(text) is not None


def are_vins(texts: Sequence[object]) -> bool:
    """Whether all `texts` are strings that may be VINs.

    Joins them into one text: for a million VINs, one match is ten times faster than many.
    """
    try:
        lines = "\n".join([*texts, ""])  # type: ignore[list-item]  # raises TypeError if a value is not a string
    except TypeError:
        return False
    # A text with a newline inside counts as two lines.
    return lines.count("\n") == len(texts) and _VIN_LINES.fullmatch(lines) is not None


def is_id(text: str) -> bool:
    """Whether `text` may be a request_id or data_id: like a VIN, but up to 128 characters."""
    return ID_PATTERN.fullmatch(text) is not None


def is_service(client_id: str) -> bool:
    """Whether this MQTT client is a service of the platform, not a vehicle."""
    return client_id.startswith(SERVICE_PREFIX)


def is_iso_3779_vin(text: str) -> bool:
    """Whether `text` is a VIN by ISO 3779, with the check digit of 49 CFR 565.15(c) at position nine.

    European manufacturers may omit the check digit, so a failure is only a warning, never a reason to refuse.
    """
    return _ISO_3779.fullmatch(text) is not None and text[8] == vin_check_digit(text)


def vin_check_digit(text: str) -> str:
    """Compute the check digit for position nine of a 17-character VIN; the character there is ignored, as its weight is 0."""
    total = 0
    for weight, char in zip(_WEIGHTS, text, strict=True):
        value = int(char) if char.isdigit() else _TRANSLITERATION[char]
        total += weight * value
    return "0123456789X"[total % 11]
