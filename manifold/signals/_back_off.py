"""Exponential backoff before a message is retried. Pure."""

import random

FIRST_S, MAX_S, JITTER = 1.0, 30.0, 0.25


def back_off_ms(retry_count: int, *, at_random: float | None = None) -> int:
    """Return the delay in ms before attempt `retry_count` + 1: 1 s, doubling up to 30 s, ±25 % jitter, never above 30 s."""
    share = random.random() if at_random is None else at_random
    plain: float = min(MAX_S, FIRST_S * 2.0 ** min(retry_count, 10))
    return round(min(MAX_S, plain * (1 - JITTER + 2 * JITTER * share)) * 1000)
