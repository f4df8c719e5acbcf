"""Loads pending entries from the lake into the queues, if they were not enqueued directly."""
