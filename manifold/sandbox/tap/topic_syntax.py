"""The topics and topic filters that EMQX accepts; for any other topic or filter, it disconnects the client. Pure."""

PROTOCOL_ERROR, TOPIC_FILTER_INVALID, TOPIC_NAME_INVALID = 0x82, 0x8F, 0x90  # DISCONNECT reason codes

_WILDCARDS = (b"+", b"#")
_SHARE = b"$share/"


def fault_of_name(topic: bytes, version: int) -> int | None:
    """Return the reason code of EMQX's DISCONNECT for a PUBLISH with this topic; None if the topic is valid.

    On MQTT 5 an empty topic is valid, because a topic alias may take its place.
    """
    if not topic and version < 5:
        return PROTOCOL_ERROR
    return None if _is_name(topic) else TOPIC_NAME_INVALID


def is_topic_filter(topic_filter: bytes) -> bool:
    """Whether these bytes are a valid topic filter (MQTT 5, 4.7.1).

    A wildcard must occupy a whole level, and `#` must be the last level. In a shared subscription, `$share/<group>/<filter>`, the
    group must not be empty or contain wildcards, and the filter must not itself be shared.
    """
    if topic_filter.startswith(_SHARE):
        group, _, topic_filter = topic_filter.removeprefix(_SHARE).partition(b"/")
        if not group or not _is_name(group) or topic_filter.startswith(_SHARE):
            return False
    if not topic_filter:
        return False
    levels = topic_filter.split(b"/")
    return b"#" not in levels[:-1] and all(level in _WILDCARDS or _is_name(level) for level in levels)


def _is_name(topic: bytes) -> bool:
    """Whether the bytes are UTF-8 without wildcards and null characters."""
    try:
        return not set("+#\0") & set(topic.decode())
    except UnicodeDecodeError:
        return False
