"""The verbs: each is a value that knows its script, its keys and arguments, and how to read the reply.

A verb changes or reads the queue of one owner in one step: one script of `lua/`, which may run twice without harm.
A new verb is a class here and a file there. `Batch.add(owner, verb, now_ms)` sends it.
"""
