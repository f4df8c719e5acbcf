// A gateway in Node: publishes one signed signal, then consumes processed signals until its own has come.
//
// usage: node gateway.js DEVICE_ID     (RABBITMQ_URI of the user gateway, READER_URI of the user reader, HMAC_SECRET_KEY)

import { createHmac, randomBytes, randomUUID } from "node:crypto";
import amqp from "amqplib";

const { RABBITMQ_URI, READER_URI, HMAC_SECRET_KEY } = process.env;
const deviceId = process.argv[2];

// The headers that prove who has sent this body. The fields of the signed text are in the order of their names.
function sign(body) {
  const hmac = (data) => createHmac("sha256", HMAC_SECRET_KEY).update(data).digest("hex");
  const timestamp = new Date().toISOString();
  const nonce = randomBytes(16).toString("hex");
  const text = `algorithm=sha256&deviceId=${deviceId}&nonce=${nonce}&payload=${hmac(body)}&timestamp=${timestamp}`;
  return { "x-algorithm": "sha256", "x-nonce": nonce, "x-timestamp-auth": timestamp, "x-hmac-signature": hmac(text) };
}

const readings = [{ type: "temperature", value: 20.5, unit: "celsius", confidence: 0.95 }];
const signal = {
  deviceId,
  capturedAt: new Date().toISOString(),
  payload: Buffer.from(JSON.stringify({ readings })).toString("base64"),
  schemaVersion: "v1",
  metadata: { location: { latitude: 52.52, longitude: 13.405, altitude: 34 }, battery: 85, signalStrength: -65 },
  correlationId: randomUUID(),
};
const body = Buffer.from(JSON.stringify(signal));

const gateway = await amqp.connect(RABBITMQ_URI, { heartbeat: 30 });
const publisher = await gateway.createConfirmChannel();
publisher.publish("iot.xray", "xray.raw.v1", body, {
  persistent: true,
  mandatory: true,
  contentType: "application/json",
  headers: {
    "x-correlation-id": signal.correlationId,
    "x-schema-version": signal.schemaVersion,
    "x-timestamp": new Date().toISOString(),
    "x-device-id": deviceId,
    ...sign(body),
  },
});
await publisher.waitForConfirms(); // RabbitMQ has it
console.log("published", signal.correlationId);
await gateway.close();

const reader = await amqp.connect(READER_URI, { heartbeat: 30 });
const consumer = await reader.createChannel();
await consumer.prefetch(50);
await consumer.consume("xray.processed.v1", async (message) => {
  const processed = JSON.parse(message.content.toString());
  console.log("processed", processed.deviceId, JSON.stringify(processed.processedData));
  consumer.ack(message); // after the work, not before
  if (processed.correlationId !== signal.correlationId) return;
  await consumer.close();
  await reader.close();
});
