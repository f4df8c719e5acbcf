"""The rules of infra/emqx/acl.conf about publishing and subscribing, as the sandbox's event tap applies them. Pure.

A test compares these rules with that file, so change both together. As on EMQX, the first matching rule decides, and the levels
of a requested filter are compared literally.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from manifold.contracts import topics
from manifold.contracts.names import SERVICE_PREFIX, is_service

PUBLISHER_PREFIX = f"{SERVICE_PREFIX}pub-"  # prefix of platform publishers' user names
LISTENER = f"{SERVICE_PREFIX}listener"  # user name of platform systems that only subscribe

_FORBIDDEN_CLIENT_ID = re.compile(r"[+#/]|^[wr]$")  # such ids would match other clients' topics


class Action(StrEnum):
    """An operation on a topic."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"


_Right = tuple[bool, Action, tuple[str, ...]]  # (allowed, action, topic filters)


@dataclass(frozen=True, slots=True)
class Rights:
    """The access rules, with the names from the settings."""

    topic_prefix: str = "agent"
    receipt_prefix: str = topics.RECEIPT_PREFIX
    recorder: str = f"{SERVICE_PREFIX}recorder"
    dispatcher: str = f"{SERVICE_PREFIX}dispatcher"
    publisher: str = PUBLISHER_PREFIX  # may be a user name without the prefix
    campaigns: str = f"{SERVICE_PREFIX}campaigns"
    api: str = f"{SERVICE_PREFIX}api"

    def allows(self, client_id: str, username: str, action: Action, topic: str) -> bool:
        """Whether the client may publish to `topic`, or subscribe to it as a filter."""
        if _FORBIDDEN_CLIENT_ID.search(client_id):
            return False
        levels = topics.without_group(topic).split("/")
        for is_allowed, right_action, filters in self._rights_of(client_id, username):
            if right_action is action and any(_covers(topic_filter.split("/"), levels) for topic_filter in filters):
                return is_allowed
        return False

    def _rights_of(self, client_id: str, username: str) -> Iterator[_Right]:
        """Yield the rights that a client has by its user name and, if it is a vehicle, by its client id."""
        yield from self._rights_of_user(username)
        if not is_service(client_id):
            yield from self._rights_of_vehicle(client_id)

    def _rights_of_user(self, username: str) -> Iterator[_Right]:
        if username.startswith(PUBLISHER_PREFIX) or username == self.publisher:
            batches = (topics.data_topic("+"), *topics.TRIGGER_TOPICS)
            yield True, Action.PUBLISH, (*batches, topics.ECQ_WRITE_FILTER, topics.ecq_rewind_topic("+"))
            yield True, Action.SUBSCRIBE, (f"{self.receipt_prefix}{username}/#",)
        if username == self.campaigns:
            yield True, Action.PUBLISH, (topics.CAMPAIGN, topics.RELEASE)
            yield True, Action.SUBSCRIBE, (f"{self.receipt_prefix}{username}/#",)
        if username == self.api:
            yield True, Action.PUBLISH, (topics.CAMPAIGN, topics.ecq_rewind_topic("+"))
            yield True, Action.SUBSCRIBE, (f"{self.receipt_prefix}{username}/#",)
        if username == self.recorder:
            yield True, Action.SUBSCRIBE, (*topics.RECORDER_FILTERS, topics.response_filter(self.topic_prefix))
            yield True, Action.PUBLISH, (f"{self.receipt_prefix}#",)
        if username == self.dispatcher:
            yield True, Action.SUBSCRIBE, (f"{topics.EVENTS}/#", topics.ONLINE_FILTER, topics.HEARTBEAT_FILTER)
            # The next rule alone would also allow writes and rewinds.
            yield False, Action.PUBLISH, (topics.ECQ_WRITE_FILTER, topics.ECQ_REWIND_FILTER)
            yield True, Action.PUBLISH, (topics.request_filter(self.topic_prefix, "+"), topics.ecq_filter("+"))
        if username == LISTENER:
            yield True, Action.SUBSCRIBE, (f"{self.topic_prefix}/+/proxy/response/#", "ecp/#")

    def _rights_of_vehicle(self, client_id: str) -> Iterator[_Right]:
        yield True, Action.PUBLISH, (topics.ecq_rewind_topic(client_id),)
        yield True, Action.SUBSCRIBE, (topics.ecq_filter(client_id), f"{self.topic_prefix}/{client_id}/#")
        signs = (topics.sign_topic(client_id, sign) for sign in topics.Sign)
        yield True, Action.PUBLISH, (*signs, f"{self.topic_prefix}/{client_id}/proxy/response/#")


def _covers(filter_levels: list[str], levels: list[str]) -> bool:
    """Whether the filter of a rule covers a topic, or a requested filter, whose wildcards count as literal levels."""
    for index, filter_level in enumerate(filter_levels):
        if filter_level == "#":
            return True
        if index >= len(levels) or filter_level not in ("+", levels[index]):
            return False
    return len(filter_levels) == len(levels)
