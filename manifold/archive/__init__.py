"""The archive: the journal of an ingress service, its segments, and the listing, reading and decoding of archive files.

Guarantees: what the journal accepts is on disk, a segment appears whole or not at all and never changes (only an erasure rewrites
one), and an unreadable file is distinguished from unavailable storage. Knows nothing of queues, lake tables, or Spark.
"""
