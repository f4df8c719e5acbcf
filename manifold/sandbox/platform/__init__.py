"""The embedded platform: every server and service of Manifold on this machine, under a supervisor.

It starts what no URL setting places elsewhere, restarts what fails, reports health, and ends only what it started.
"""
