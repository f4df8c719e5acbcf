"""Corrects PyIceberg's upper bounds of strings; importing this module applies the correction.

The statistics of a file have an upper bound for each column: the greatest string, cut after 16 characters, with the last one
incremented. PyIceberg 0.12 increments U+D7FF to a surrogate, which UTF-8 cannot encode, and fails: one message with such
a string would make every later run fail.
"""

import sys

from pyiceberg.utils import truncate

LAST_BEFORE_HALVES, FIRST_AFTER = "\ud7ff", "\ue000"
LAST = chr(sys.maxunicode)


def upper_bound(value: str, length: int | None) -> str | None:
    """The least string of at most `length` characters that is not less than `value`, or than any string with the same prefix.

    None if there is none. A string of at most `length` characters is its own bound.
    """
    kept = value[:length]
    if kept == value:
        return value
    raisable = kept.rstrip(LAST)
    if not raisable:
        return None
    last = raisable[-1]
    return raisable[:-1] + (FIRST_AFTER if last == LAST_BEFORE_HALVES else chr(ord(last) + 1))


truncate.truncate_upper_bound_text_string = upper_bound  # type: ignore[assignment]  # callers pass arguments by position
if writer := sys.modules.get("pyiceberg.io.pyarrow"):  # it has copied the function at its import
    writer.truncate_upper_bound_text_string = upper_bound  # type: ignore[attr-defined]
