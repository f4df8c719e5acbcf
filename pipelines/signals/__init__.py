"""Signals that are in the lake: processed again, day by day."""
