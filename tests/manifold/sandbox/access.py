"""EMQX's access file, evaluated like EMQX: rules from the top, the first match decides, otherwise denied.

Each level of the requested filter is compared literally, so `#` matches `+` of a rule: EMQX 5.8.9 was observed to do the same.
"""

import re
from dataclasses import dataclass

_RULE = re.compile(r"^\{(allow|deny), (all|\{[a-z_]+, .*?\})(?:, (all|publish|subscribe)(?:, (all|\[.*\]))?)?\}\.$", re.MULTILINE)
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Client:
    """The requesting client."""

    client_id: str
    username: str = ""
    vehicle: str = ""  # its user name, if it uses the vehicles' listener of tls.conf


def allows(rules: str, client: Client, action: str, topic: str) -> bool:
    """Whether the access file lets `client` `publish` or `subscribe` to a topic."""
    found = _RULE.findall(rules)
    assert len(found) == sum(line.startswith("{") for line in rules.splitlines()), "an unknown form of rule"
    for verdict, who, actions, topics in found:
        filters = [_filled(text, client) for text in _TEXT.findall(topics)] or ["#"]
        if _is(who, client) and actions in ("", "all", action) and any(_covers(wanted, topic) for wanted in filters):
            return bool(verdict == "allow")
    return False


def _is(who: str, client: Client) -> bool:
    if who == "all":
        return True
    texts = {"username": client.username, "clientid": client.client_id, "client_attr": client.vehicle}
    text = texts[who[1:].partition(",")[0]]
    pattern = _TEXT.findall(who)[-1]
    return bool(re.search(pattern, text)) if "{re," in who else pattern == text


def _filled(topic_filter: str, client: Client) -> str:
    return topic_filter.replace("${clientid}", client.client_id).replace("${username}", client.username)


def _covers(topic_filter: str, topic: str) -> bool:
    wanted, words = topic_filter.split("/"), topic.split("/")
    if words[0] in ("$share", "$exclusive"):
        words = words[2:] if words[0] == "$share" else words[1:]
    for place, word in enumerate(wanted):
        if word == "#":
            return place > 0 or topic_filter == "#"
        if place >= len(words) or word not in ("+", words[place]):
            return False
    return len(wanted) == len(words)
