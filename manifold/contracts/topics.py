"""Every MQTT topic that Manifold publishes, reads or issues. Topics are spelled nowhere else."""

from enum import StrEnum

from manifold.contracts.names import RESERVED_CLIENT_IDS, DataId, Owner, RequestId

FANOUT = "$SDV-FANOUT"
TRIGGER = f"{FANOUT}/trigger"
TRIGGER_TOPICS = (TRIGGER, FANOUT)  # FANOUT is the trigger topic of the former fan-out plug-in, which had no data topics
DATA_PREFIX = f"{FANOUT}/data/"
CAMPAIGN = f"{FANOUT}/campaign"
RELEASE = f"{FANOUT}/release"  # triggers of the campaigner; a topic of its own, because brokers grant publishing by topic
FANOUT_FILTER = f"{FANOUT}/#"
RECORDER_GROUP = "sdv-recorders"
DISPATCHER_GROUP = "sdv-dispatchers"
ONLINE_FILTER, HEARTBEAT_FILTER = "ecp/+/online", "ecp/+/heartbeat"
EVENTS = "$SDV-EVT"
RECEIPT_PREFIX = "sdv/receipt/"
ECQ = "$ECQ"
ECQ_PREFIX = f"{ECQ}/"
ECQ_WRITE_PREFIX, ECQ_REWIND_PREFIX = f"{ECQ}/w/", f"{ECQ}/r/"
ECQ_WRITE_FILTER, ECQ_REWIND_FILTER = f"{ECQ_WRITE_PREFIX}#", f"{ECQ_REWIND_PREFIX}#"

RECORDER_FILTERS = (FANOUT_FILTER, ECQ_WRITE_FILTER, ECQ_REWIND_FILTER)


class BrokerEvent(StrEnum):
    """The kinds of broker events; the second level of an event topic."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    SUBSCRIBED = "subscribed"
    UNSUBSCRIBED = "unsubscribed"
    DELIVERED = "delivered"  # disabled on EMQX: it costs a fifth of the throughput and is not used
    ACKED = "acked"
    DROPPED = "dropped"  # the client id is the publisher's
    DELIVERY_DROPPED = "delivery_dropped"


_EVENT_NAMES = frozenset(event.value for event in BrokerEvent)


class Sign(StrEnum):
    """A vehicle's messages about itself on `ecp/<VIN>/<sign>`."""

    ONLINE = "online"
    HEARTBEAT = "heartbeat"


def data_topic(data_id: DataId | str) -> str:
    """Return the topic on which the platform publishes the payload `data_id`."""
    return f"{DATA_PREFIX}{data_id}"


def request_topic(prefix: str, vin: Owner | str, request_id: RequestId | str) -> str:
    """Return the topic of a message to a vehicle; `prefix` is the setting `topic_prefix`."""
    return f"{prefix}/{vin}/proxy/request/{request_id}"


def request_filter(prefix: str, vin: Owner | str) -> str:
    """Return the topic filter of a vehicle's usual subscription."""
    return f"{prefix}/{vin}/proxy/request/+"


def ecq_write_topic(client_id: Owner | str, key: str) -> str:
    """Return the topic on which a publisher writes the newest message of a key."""
    return f"{ECQ_WRITE_PREFIX}{client_id}/{key}"


def ecq_rewind_topic(client_id: Owner | str) -> str:
    """Return the topic on which a consumer, or an operator for it, requests a rewind of its queue."""
    return f"{ECQ_REWIND_PREFIX}{client_id}"


def ecq_topic(client_id: Owner | str, key: str) -> str:
    """Return the topic on which a consumer receives the messages of a key."""
    return f"{ECQ}/{client_id}/{key}"


def ecq_filter(client_id: Owner | str) -> str:
    """Return the topic filter of a consumer's usual subscription."""
    return f"{ECQ}/{client_id}/#"


def ecq_of(topic: str) -> tuple[Owner, str] | None:
    """Parse a topic made by `ecq_topic` into consumer and key; None for any other topic, including writes and rewinds."""
    match topic.split("/", 2):
        case [root, client_id, key] if root == ECQ and client_id not in RESERVED_CLIENT_IDS:
            return Owner(client_id), key
    return None


def sign_topic(vin: Owner | str, sign: Sign) -> str:
    """Return the topic on which a vehicle reports its presence."""
    return f"ecp/{vin}/{sign}"


def event_topic(event: BrokerEvent, client_id: str) -> str:
    """Return the topic of broker events of one kind about one client."""
    return f"{EVENTS}/{event}/{client_id}"


def event_filter(event: BrokerEvent) -> str:
    """Return the filter for all events of one kind; it ends in `#` because a client id may contain `/`."""
    return f"{EVENTS}/{event}/#"


def shared(group: str, topic_filter: str) -> str:
    """Return a shared subscription: each message goes to one member of the group."""
    return f"$share/{group}/{topic_filter}"


def without_group(topic_filter: str) -> str:
    """Strip `$share/<group>/…`, or `$exclusive/…` (EMQX), from a topic filter."""
    if topic_filter.startswith("$share/"):
        return topic_filter.split("/", 2)[-1]
    return topic_filter.removeprefix("$exclusive/")


def data_id_of(topic: str) -> str | None:
    """Return the data id of a data topic, unvalidated; None for any other topic."""
    return topic[len(DATA_PREFIX) :] if topic.startswith(DATA_PREFIX) else None


def sign_of(topic: str) -> tuple[Owner, Sign] | None:
    """Parse an `ecp/` topic into vehicle and sign; None for any other topic."""
    match topic.split("/"):
        case ["ecp", vin, ("online" | "heartbeat") as sign]:
            return Owner(vin), Sign(sign)
    return None


def event_of(topic: str) -> tuple[BrokerEvent, str] | None:
    """Parse an event topic into event and client id; None for any other topic."""
    match topic.split("/", 2):
        case [root, name, client_id] if root == EVENTS and name in _EVENT_NAMES:
            return BrokerEvent(name), client_id
    return None


def response_topic(prefix: str, vin: Owner | str, campaign: RequestId | str) -> str:
    """Return the topic on which a vehicle answers a campaign."""
    return f"{prefix}/{vin}/proxy/response/{campaign}"


def response_filter(prefix: str) -> str:
    """Return the filter for the answers of all vehicles."""
    return response_topic(prefix, "+", "+")


def response_of(topic: str) -> tuple[str, str] | None:
    """Parse a topic made by `response_topic` with any prefix into vehicle and campaign, unvalidated; None for any other."""
    match topic.rsplit("/", 4):
        case [_, vin, "proxy", "response", campaign]:
            return vin, campaign
    return None


def request_of(prefix: str, topic: str) -> tuple[Owner, RequestId] | None:
    """Parse a request topic into vehicle and request id; None for any other topic."""
    if not topic.startswith(prefix + "/"):
        return None
    match topic[len(prefix) + 1 :].split("/"):
        case [vin, "proxy", "request", request_id]:
            return Owner(vin), RequestId(request_id)
    return None
