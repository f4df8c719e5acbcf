"""The contracts of Manifold: topics, messages, tables, keys, settings, errors.

Pure: no I/O, no clock of its own, no library that talks to a server. Every room may import it, and it imports none.
"""
