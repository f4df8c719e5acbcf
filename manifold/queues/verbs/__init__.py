"""The verbs. Each is a value that knows its script, its keys and arguments, and how to parse the reply.

A verb reads or changes one owner's queue in one script of `lua/`, which is atomic and may run twice without harm. To add a verb,
add a class to this package and a file to `lua/`. `Batch.add(owner, verb, now_ms)` sends a verb.
"""
