"""Which topics and topic filters EMQX accepts; for any other it disconnects the client. Pure."""

PROTOCOL_ERROR, TOPIC_FILTER_INVALID, TOPIC_NAME_INVALID = 0x82, 0x8F, 0x90  # DISCONNECT reason codes

_WILDCARDS = (b"+", b"#")
_SHARE = b"$share/"


def fault_of_name(topic: bytes, version: int) -> int | None:
    """Return the reason code of EMQX's DISCONNECT for a PUBLISH with this topic; None: it is valid, or empty with an alias."""
    if not topic and version < 5:
        return PROTOCOL_ERROR
    return None if _is_name(topic) else TOPIC_NAME_INVALID


def is_topic_filter(asked: bytes) -> bool:
    """Whether these bytes are a valid topic filter: wildcards occupy whole levels, and `#` the last one (MQTT 5, 4.7.1).

    The filter of a shared subscription has a group without wildcards, and is not itself shared.
    """
    if asked.startswith(_SHARE):
        group, _, asked = asked.removeprefix(_SHARE).partition(b"/")
        if not group or not _is_name(group) or asked.startswith(_SHARE):
            return False
    levels = asked.split(b"/")
    return bool(asked) and b"#" not in levels[:-1] and all(level in _WILDCARDS or _is_name(level) for level in levels)


def _is_name(topic: bytes) -> bool:
    try:
        return not set("+#\0") & set(topic.decode())
    except UnicodeDecodeError:
        return False
