"""The archive: the journal of an ingress service, its segments, and the listing, reading and decoding of archive files.

Guarantees: a message that the journal has accepted is on disk. A segment is written atomically and never changes, except by an
erasure. An unreadable file and unavailable storage raise different errors.
"""
