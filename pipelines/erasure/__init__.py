"""Erases a vehicle from archive, tables and queues, and proves that it is gone."""
