"""Unconfirmed publishes of one client: packet ids, and the future of each PUBACK."""

import asyncio

from manifold.contracts.errors import Retryable

MAX_MID = 65535


class Unconfirmed:
    """The packet ids of unconfirmed publishes, each with a future for the reason code of its PUBACK."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._last_mid = 0
        self._answers: dict[int, asyncio.Future[int]] = {}

    def next_mid(self) -> int:
        """Return a free packet id.

        Raises:
            Retryable: all packet ids are in use.
        """
        if len(self._answers) >= MAX_MID:
            raise Retryable(f"{self._client_id} has {MAX_MID} publishes under way; publish again when some are confirmed")
        while True:
            self._last_mid = self._last_mid % MAX_MID + 1  # 1 follows `MAX_MID`
            if self._last_mid not in self._answers:
                return self._last_mid

    def add(self, mid: int, answer: "asyncio.Future[int]") -> None:
        """Register the future for the PUBACK of packet `mid`."""
        self._answers[mid] = answer

    def confirm(self, mid: int, reason: int) -> None:
        """Complete the future of packet `mid` with the PUBACK's reason code. Unknown ids are ignored."""
        answer = self._answers.pop(mid, None)
        if answer is not None and not answer.done():  # the caller may have cancelled it
            answer.set_result(reason)

    def fail_all(self) -> None:
        """Let all futures raise Retryable, because the connection is lost."""
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(Retryable(f"{self._client_id} lost its connection before the PUBACK; publish again"))
