"""The read side as an HTTP service: what the queues, the archive and the lake know, under /api/v1, for people and programs.

Run as `python -m api`. This file loads nothing: a process may be told to leave pandas out before anything loads it.
"""
