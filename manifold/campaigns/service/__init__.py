"""The campaigner: a process that carries out campaigns. One is active; others stand by."""

from manifold.campaigns.service._campaigner import Campaigner

__all__ = ["Campaigner"]
