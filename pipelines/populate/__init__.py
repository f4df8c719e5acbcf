"""Lake to queues: pending entries that were not enqueued directly."""
