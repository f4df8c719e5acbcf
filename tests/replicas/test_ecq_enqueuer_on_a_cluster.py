"""The direct enqueue of compacted queues, repeated on Redis Cluster."""

from tests.manifold.recorder.test_ecq_enqueuer import *  # noqa: F403  # its tests run here with the fixtures of this module
