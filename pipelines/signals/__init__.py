"""Reprocesses the signals in the lake, day by day."""
