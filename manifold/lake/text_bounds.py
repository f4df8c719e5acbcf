"""Corrects PyIceberg's upper bounds of texts; importing this module applies the correction.

The statistics of a file have an upper bound for each column: the greatest text, cut after 16 characters, with the last one
raised by one. PyIceberg 0.12 raises U+D7FF to a surrogate, which UTF-8 cannot encode, and fails: one message with such a text
would make every later run fail.
"""

import sys

from pyiceberg.utils import truncate

LAST_BEFORE_HALVES, FIRST_AFTER = "\ud7ff", "\ue000"
LAST = chr(sys.maxunicode)


def upper_bound(value: str, length: int | None) -> str | None:
    """The least text of at most `length` characters that is not less than `value`, or than any that begins as it does.

    None: there is none. A text that is no longer than that is its own bound.
    """
    kept = value[:length]
    if kept == value:
        return value
    raisable = kept.rstrip(LAST)
    if not raisable:
        return None
    last = raisable[-1]
    return raisable[:-1] + (FIRST_AFTER if last == LAST_BEFORE_HALVES else chr(ord(last) + 1))


truncate.truncate_upper_bound_text_string = upper_bound  # type: ignore[assignment]  # its names of arguments are not used
if writer := sys.modules.get("pyiceberg.io.pyarrow"):  # which takes the function with it when it is imported
    writer.truncate_upper_bound_text_string = upper_bound  # type: ignore[attr-defined]
