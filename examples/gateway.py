"""A gateway: publishes one signed signal of a device, and reports if the signal is refused within three seconds.

usage: gateway.py DEVICE_ID     (RABBITMQ_URI of the user gateway, HMAC_SECRET_KEY)
"""

import base64
import hmac
import json
import os
import secrets
import sys
import uuid
from datetime import UTC, datetime

import pika


def sign(body: bytes, device_id: str, secret: bytes) -> dict[str, str]:
    """Return the headers that prove who has sent this body. The fields of the signed text are sorted by name."""
    timestamp = datetime.now(UTC).isoformat(timespec="milliseconds")
    nonce = secrets.token_hex(16)
    digest = hmac.digest(secret, body, "sha256").hex()
    text = f"algorithm=sha256&deviceId={device_id}&nonce={nonce}&payload={digest}&timestamp={timestamp}"
    signature = hmac.digest(secret, text.encode(), "sha256").hex()
    return {"x-algorithm": "sha256", "x-nonce": nonce, "x-timestamp-auth": timestamp, "x-hmac-signature": signature}


device_id = sys.argv[1]
correlation_id = str(uuid.uuid4())
now = datetime.now(UTC).isoformat(timespec="milliseconds")
payload = json.dumps({"readings": [{"type": "temperature", "value": 20.5, "unit": "celsius", "confidence": 0.95}]})
signal = {"deviceId": device_id, "capturedAt": now, "schemaVersion": "v1", "correlationId": correlation_id}
body = json.dumps(signal | {"payload": base64.b64encode(payload.encode()).decode()}).encode()
headers = {"x-correlation-id": correlation_id, "x-schema-version": "v1", "x-timestamp": now, "x-device-id": device_id}
headers |= sign(body, device_id, os.environ["HMAC_SECRET_KEY"].encode())

connection = pika.BlockingConnection(pika.URLParameters(os.environ["RABBITMQ_URI"]))
channel = connection.channel()
channel.confirm_delivery()  # basic_publish now returns once RabbitMQ has stored the message, or raises an error
reply_queue = channel.queue_declare("", exclusive=True).method.queue
properties = pika.BasicProperties(content_type="application/json", delivery_mode=2, headers=headers, reply_to=reply_queue)
channel.basic_publish("iot.xray", "xray.raw.v1", body, properties, mandatory=True)
print("published", correlation_id)
_, _, error = next(channel.consume(reply_queue, auto_ack=True, inactivity_timeout=3))
connection.close()
if error:
    sys.exit(f"refused: {error.decode()}")
