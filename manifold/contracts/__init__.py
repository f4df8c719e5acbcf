"""The contracts of Manifold: topics, messages, tables, keys, settings, errors.

Pure: no I/O, no clock of its own, no client libraries. Every package may import it; it imports none of them.
"""
