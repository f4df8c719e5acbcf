"""The archive: the journal of a door, the segments that it becomes, and how every file of the archive is found, read and decoded.

It promises that what the journal has taken is on disk, that a segment appears whole or not at all and never changes (an erasure
alone rewrites one), and that a file that cannot be read is told apart from a storage that is away. It knows nothing of queues,
tables of the lake, or Spark.
"""
