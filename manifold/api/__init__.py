"""The read side as an HTTP service: what the queues, the archive and the lake know, under /api/v1, for people and programs.

It promises that an answer is bounded and comes in pages, that every error is a problem with its remedy, and that it listens
beyond loopback only with a token. It changes nothing, except that it publishes a rewind of a compacted queue for whoever asks.

Run as `python -m manifold.api`. This file loads nothing: a process may be told to leave pandas out before anything loads it.

"""
