"""The populate lock in Redis: held by a process that compares the lake with the queues, for as long as that takes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from redis import Redis
from redis.exceptions import LockError, RedisError
from redis.lock import Lock

from manifold.contracts import keys
from manifold.contracts.errors import Retryable

LEASE_S = 60.0  # expiry of the lock of a dead holder
RENEW_S = 15.0
WAIT_S = 900.0


class Held:
    """A lock that is renewed in the background."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    def check(self) -> None:
        """Verify that the lock is still held.

        Raises:
            Retryable: it is not: Redis was wiped or restarted, or was unavailable for too long.
        """
        if not self._lock.owned():
            raise Retryable("Redis lost the lock of this run, and perhaps entries with it; run it again")


@contextmanager
def populate_lock(redis: Redis) -> Iterator[Held]:
    """Hold the lock during the block.

    Raises:
        Retryable: another process has held it for a quarter of an hour.
    """
    lock = redis.lock(keys.POPULATE_LOCK, timeout=LEASE_S, blocking_timeout=WAIT_S, thread_local=False)
    if not lock.acquire():
        raise Retryable(
            f"another process has held {keys.POPULATE_LOCK} for {WAIT_S:.0f} s; see whether it is stuck, then try again"
        )
    ended = threading.Event()
    thread = threading.Thread(target=_renew, args=(lock, ended), name="populate-lock", daemon=True)
    thread.start()
    try:
        yield Held(lock)
    finally:
        ended.set()
        thread.join()
        if lock.owned():
            lock.release()


def _renew(lock: Lock, ended: threading.Event) -> None:
    while not ended.wait(RENEW_S):
        try:
            lock.reacquire()
        except LockError:
            return  # `check` raises
        except RedisError:
            continue  # perhaps a short outage: the lease outlasts it
