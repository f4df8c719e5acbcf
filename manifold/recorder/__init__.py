"""The MQTT ingress: writes published messages to disk before it acknowledges them, archives them, and enqueues them at once.

Guarantees: a receipt means durable, no message stops the recorder or is recorded more than twice, and after a gap, missed
messages are enqueued before new ones. It delivers nothing and audits no table.
"""

from manifold.recorder._recorder import Recorder

__all__ = ["Recorder"]
