"""PyIceberg's upper bounds of texts, without half characters: whoever imports this module has them.

A file's statistics say of each column up to where its values go, and cut the greatest text after 16 characters, the last of them
raised by one. Where that is U+D7FF, PyIceberg 0.12 raises it to what UTF-8 cannot hold, and fails: one message with such a text
would keep every later run from being written.
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
