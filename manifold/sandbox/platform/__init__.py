"""The embedded platform: every server and service of Manifold on this machine, under a supervisor.

It starts all servers and services except those that a URL setting locates elsewhere, restarts those that fail, reports their
health, and ends only processes that it has started.
"""
