"""The embedded platform: every server and service of Manifold on this machine, under a supervisor.

It starts what no URL setting places elsewhere, keeps it running, says how it is, and ends exactly what it started.
"""
