"""The read side as an HTTP service: the contents of queues, archive and lake under /api/v1, for people and programs.

Guarantees: responses are bounded and paged, every error is a problem document with its remedy, and without a token the service
listens on loopback only. It is read-only, except that it publishes rewinds of compacted queues and orders to campaigns.

Run as `python -m manifold.api`. This file imports nothing, so that the process can exclude pandas before anything imports it.
"""
