"""The populate lock in Redis, which a process holds while it compares the lake with the queues and changes them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from redis import Redis
from redis.exceptions import LockError, RedisError
from redis.lock import Lock

from manifold.contracts import keys
from manifold.contracts.errors import Retryable

LEASE_S = 60.0  # after which the lock of a dead holder expires
RENEW_INTERVAL_S = 15.0
MAX_WAIT_S = 900.0  # for the lock


class HeldLock:
    """A lock that this process holds, and that a thread renews."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    def require_held(self) -> None:
        """Verify that this process still holds the lock.

        Raises:
            Retryable: the lock is lost, because Redis was wiped or restarted, or was unavailable for too long.
        """
        if not self._lock.owned():
            raise Retryable("Redis lost the lock of this run, and perhaps entries with it; run it again")


@contextmanager
def populate_lock(redis: Redis) -> Iterator[HeldLock]:
    """Wait for the lock, hold it during the block, and renew it meanwhile in a thread.

    Raises:
        Retryable: another process has held the lock for a quarter of an hour.
    """
    lock = redis.lock(keys.POPULATE_LOCK, timeout=LEASE_S, blocking_timeout=MAX_WAIT_S, thread_local=False)
    if not lock.acquire():
        raise Retryable(
            f"another process has held {keys.POPULATE_LOCK} for {MAX_WAIT_S:.0f} s; see whether it is stuck, then try again"
        )
    stop = threading.Event()
    thread = threading.Thread(target=_renew, args=(lock, stop), name="populate-lock", daemon=True)
    thread.start()
    try:
        yield HeldLock(lock)
    finally:
        stop.set()
        thread.join()
        if lock.owned():
            lock.release()


def _renew(lock: Lock, stop: threading.Event) -> None:
    """Renew the lease until `stop` is set or the lock is lost."""
    while not stop.wait(RENEW_INTERVAL_S):
        try:
            lock.reacquire()
        except LockError:  # the lock is lost, which `HeldLock.require_held` reports
            return
        except RedisError:  # the lease outlasts a short outage, so the next interval retries
            continue
