"""Compaction, garbage collection, and the comparison of queues and lake."""
