"""Corrects PyIceberg's upper bounds of strings; importing this module applies the correction.

The statistics of a file have an upper bound for each string column: the greatest string, cut after 16 characters, with its last
character incremented. PyIceberg 0.12 increments U+D7FF to a surrogate, which UTF-8 cannot encode, and then fails. Without the
correction, one message with such a string would make every later run fail.
"""

import sys

from pyiceberg.utils import truncate

LAST_BEFORE_SURROGATES, FIRST_AFTER_SURROGATES = "\ud7ff", "\ue000"
LAST_CHARACTER = chr(sys.maxunicode)


def upper_bound(value: str, length: int | None) -> str | None:
    """An upper bound of `value` that has at most `length` characters; None if there is none.

    A value of at most `length` characters, and any value if `length` is None, is its own bound. The bound of a longer value is
    its prefix with the last character incremented; it is also a bound of all other strings with this prefix.
    """
    prefix = value[:length]
    if prefix == value:
        return value
    incrementable = prefix.rstrip(LAST_CHARACTER)  # the last character of Unicode cannot be incremented
    if not incrementable:
        return None
    last = incrementable[-1]
    successor = FIRST_AFTER_SURROGATES if last == LAST_BEFORE_SURROGATES else chr(ord(last) + 1)
    return incrementable[:-1] + successor


truncate.truncate_upper_bound_text_string = upper_bound  # type: ignore[assignment]  # callers pass arguments by position
# If this module is loaded already, it has imported PyIceberg's function by name, and must be corrected as well.
if writer := sys.modules.get("pyiceberg.io.pyarrow"):
    writer.truncate_upper_bound_text_string = upper_bound  # type: ignore[attr-defined]
