"""Mosquitto for Manifold: its configuration, its ACL files, and the command that starts it.

Its settings follow EMQX's defaults where possible. The ACL files follow infra/emqx/acl.conf within three limits of Mosquitto 2.0.
It has no rules for user name prefixes, so the tap connects clients with a user name `sdv-pub-…` to a separate listener. It grants
every SUBSCRIBE and withholds messages that the client may not read, so the tap answers subscriptions by
`manifold.contracts.rights`. And it has no rules about client ids: the tap refuses the two that EMQX's file denies, and a client
with an id `sdv-…` but without a service's user name has a vehicle's rights to its own topics.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from manifold.contracts import topics
from manifold.contracts.rights import LISTENER, PUBLISHER_PREFIX
from manifold.sandbox.platform.installed import path_of
from manifold.settings import Settings
from manifold.settings.embedded_broker import (
    MAX_INFLIGHT,
    SESSION_MAX_S,
    TAP_USERNAME,
    config_file,
    folder,
    inner_socket,
    outer_socket,
)

# Messages that the broker queues for one client. A vehicle needs few, but a service that is offline for a minute needs 100,000,
# and Mosquitto has one limit for all clients.
QUEUED_MAX = 1_000_000
AUTOSAVE_S = 5  # between two saves of sessions and messages to disk


def command(settings: Settings) -> list[str]:
    """Write the configuration, and return the command to run in the foreground.

    Raises:
        Permanent: Mosquitto is not installed.
    """
    binary = path_of("mosquitto", remedy="install it (Debian: apt-get install mosquitto)")
    return [binary, "-c", str(write_config(settings))]


def write_config(settings: Settings) -> Path:
    """Write the configuration and the ACL files; return the configuration's path."""
    home = folder(settings)
    home.mkdir(parents=True, exist_ok=True)
    outer_acl, inner_acl = home / "vehicles.acl", home / "platform.acl"
    for file, text in ((outer_acl, outer_access(settings)), (inner_acl, inner_access(settings))):
        file.write_text(text)
        file.chmod(0o600)
    path = config_file(settings)
    path.write_text(_config(settings, outer_acl, inner_acl))
    return path


def _config(settings: Settings, outer_acl: Path, inner_acl: Path) -> str:
    """Return the text of the broker's configuration file."""
    return f"""\
# Written by Manifold at each start; edits are lost.
{"user root" if os.geteuid() == 0 else "# user: the one that starts it"}
per_listener_settings true
log_dest stderr
# No warnings: one would come for each connection to a Unix socket, which has no TCP_NODELAY, and for each ACL pattern without
# %c or %u.
log_type error
log_type notice
connection_messages false
sys_interval 0

# Otherwise each delivery waits some 40 ms until TCP acknowledges the previous packet.
set_tcp_nodelay true

# As in EMQX: how many messages a vehicle may leave unacknowledged; that messages with QoS 0 are queued for an offline vehicle;
# and how long a session of MQTT 3.1.1 outlives its connection. That time also limits the expiry that a client on MQTT 5
# requests; the tap's events have the limited expiry.
max_inflight_messages {MAX_INFLIGHT}
queue_qos0_messages true
persistent_client_expiration {SESSION_MAX_S // 3600}h

max_queued_messages {QUEUED_MAX}
# A message that is a little too large is let through, because the recorder refuses it with a reason.
max_packet_size {settings.largest_packet}

persistence true
persistence_location {folder(settings)}/
persistence_file sessions.db
autosave_interval {AUTOSAVE_S}

# Vehicles and services, through the tap.
listener {f"0 {outer_socket(settings)}" if settings.tls else f"{settings.broker_port} {settings.loopback}"}
allow_anonymous true
acl_file {outer_acl}

# The tap's events, and clients whose user name begins with {PUBLISHER_PREFIX}
listener 0 {inner_socket(settings)}
allow_anonymous true
acl_file {inner_acl}
"""


def outer_access(settings: Settings) -> str:
    """Return the ACL file of the listener for vehicles and Manifold's services."""
    prefix, receipt_prefix = settings.topic_prefix, settings.receipt_prefix
    recorder_filters = (*topics.RECORDER_FILTERS, topics.response_filter(prefix))
    recorder_rights = [f"read {topic_filter}" for topic_filter in recorder_filters]
    recorder_rights.append(f"write {receipt_prefix}#")
    dispatcher_rights = [
        f"read {topics.EVENTS}/#",
        f"read {topics.ONLINE_FILTER}",
        f"read {topics.HEARTBEAT_FILTER}",
        f"write {topics.request_topic(prefix, '+', '+')}",
        f"write {topics.ecq_filter('+')}",
    ]
    # `ecq_filter('+')` above also covers the topics for commands to compacted queues, which the dispatcher must not write.
    dispatcher_rights += [f"deny {topic_filter}" for topic_filter in (topics.ECQ_WRITE_FILTER, topics.ECQ_REWIND_FILTER)]
    rights_by_user: list[tuple[str, Iterable[str]]] = [
        (settings.mqtt_username_recorder, recorder_rights),
        (settings.mqtt_username_dispatcher, dispatcher_rights),
    ]
    # Both may publish orders to campaigns; the campaigner may also publish triggers, and the API rewinds.
    for user, extra_topic in (
        (settings.mqtt_username_campaigns, topics.RELEASE),
        (settings.mqtt_username_api, topics.ecq_rewind_topic("+")),
    ):
        rights = (f"write {topics.CAMPAIGN}", f"write {extra_topic}", f"read {receipt_prefix}{user}/#")
        rights_by_user.append((user, rights))
    # Platform systems that only listen: to the vehicles' responses, and their `online` and `heartbeat`.
    rights_by_user.append((LISTENER, (f"read {prefix}/+/proxy/response/#", "read ecp/#")))
    publisher = settings.mqtt_username_publisher
    if not publisher.startswith(PUBLISHER_PREFIX):  # otherwise it uses the inner listener
        rights_by_user.append((publisher, (*_PUBLISHER_RIGHTS, f"read {receipt_prefix}{publisher}/#")))
    lines = []
    for user, user_rights in rights_by_user:
        lines.append(f"user {user}")
        lines += [f"topic {right}" for right in user_rights]
    return "\n".join([*lines, *_vehicle_patterns(settings)]) + "\n"


def inner_access(settings: Settings) -> str:
    """Return the ACL file of the listener for the tap and for platform publishers; %u is a publisher's user name."""
    tap = [f"user {TAP_USERNAME}", f"topic write {topics.EVENTS}/#"]
    publishers = [f"pattern {right}" for right in (*_PUBLISHER_RIGHTS, f"read {settings.receipt_prefix}%u/#")]
    return "\n".join([*tap, *publishers, *_vehicle_patterns(settings)]) + "\n"


_PUBLISHER_TOPICS = (topics.data_topic("+"), *topics.TRIGGER_TOPICS, topics.ECQ_WRITE_FILTER, topics.ecq_rewind_topic("+"))
_PUBLISHER_RIGHTS = tuple(f"write {topic}" for topic in _PUBLISHER_TOPICS)


def _vehicle_patterns(settings: Settings) -> list[str]:
    """Return the ACL lines with a vehicle's rights, which cover its own topics only; %c is the client id.

    Mosquitto does not apply such patterns to client ids with a wildcard or a slash, so these clients have no rights.
    """
    rights = [
        f"read {topics.ecq_filter('%c')}",
        f"read {settings.topic_prefix}/%c/#",
        *(f"write {topics.sign_topic('%c', sign)}" for sign in topics.Sign),
        f"write {settings.topic_prefix}/%c/proxy/response/#",
        f"write {topics.ecq_rewind_topic('%c')}",
    ]
    return [f"pattern {right}" for right in rights]
