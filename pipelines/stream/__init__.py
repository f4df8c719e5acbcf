"""The ingest in micro-batches."""
