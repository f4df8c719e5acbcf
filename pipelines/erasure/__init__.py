"""A vehicle taken out of archive, tables and queues, and the proof that it is."""
