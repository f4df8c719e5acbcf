"""X-ray signals: messages, error codes, digests, processing, and the records of journal and archive. Pure, no I/O."""
