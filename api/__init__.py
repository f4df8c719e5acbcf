"""The read side as an HTTP service: what the queues, the archive and the lake know, under /api/v1, for people and programs."""

from api._app import application

__all__ = ["application"]
