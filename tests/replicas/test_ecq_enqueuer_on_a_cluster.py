"""The direct enqueue of compacted queues, once more with Redis Cluster below it."""

from tests.manifold.recorder.test_ecq_enqueuer import *  # noqa: F403  # its tests run here with the fixtures of this module
