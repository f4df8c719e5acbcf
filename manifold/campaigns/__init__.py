"""Campaigns: which vehicles are named in a trigger, and when, under a plan that people approve.

A pure core decides. `fold` turns a plan and the recorded facts into a state; `step` turns a state and an instant into effects.
The core reads no clock, opens no connection, and imports only contracts. Every decision is recorded before it has an effect.
"""

from manifold.campaigns.fold import Campaign, fold
from manifold.campaigns.parsing import parse_plan
from manifold.campaigns.plan import Plan
from manifold.campaigns.step import Policy, step

__all__ = ["Campaign", "Plan", "Policy", "fold", "parse_plan", "step"]
