"""What Manifold promises: topics, messages, tables, keys, settings, errors. Pure: no I/O, no clock of its own."""
