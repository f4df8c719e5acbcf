"""The archive: which files it has, what they hold, and what becomes of refused ones."""
