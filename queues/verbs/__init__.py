"""The verbs: each is a value that knows its script, its keys and arguments, and how to read what Redis answers.

A verb changes one owner's queue, or asks about it, in one step: it is one script of `lua/`, which may run twice without harm.
A new one is a class here and a file there. `Batch.add(owner, verb, now_ms)` sends it.
"""
