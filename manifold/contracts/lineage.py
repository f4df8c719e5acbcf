"""The names of a run in OpenLineage: its id, and the run that has started it, as one line of text.

They are computed as OpenLineage's client and Airflow's provider do, so that the events of all of them belong to one run.
"""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self
from uuid import UUID


def run_uuid(instant: datetime, data: str) -> str:
    """The id of a run that began, or was due, at `instant`: a UUID of version 7, the same for the same arguments."""
    at = instant.astimezone(UTC)
    digest = hashlib.sha1(at.isoformat().encode() + data.encode(), usedforsecurity=False).digest()
    number = (int(at.timestamp() * 1000) & 0xFFFFFFFFFFFF) << 80 | int.from_bytes(digest) >> 84
    version_and_variant = 0xF000 << 64 | 0xC000 << 48
    return str(UUID(int=number & ~version_and_variant | 7 << 76 | 0x8000 << 48))


@dataclass(frozen=True, slots=True)
class RunName:
    """One run of one job."""

    namespace: str
    job: str
    run_id: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.job}/{self.run_id}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The run that `str` of it names; a namespace may have slashes.

        Raises:
            ValueError: it names none.
        """
        namespace, job, run_id = ("", *text.rsplit("/", 2))[-3:]
        if not (namespace and job):
            raise ValueError("must be <namespace>/<job>/<run id>")
        return cls(namespace, job, str(UUID(run_id)))


def task_run(namespace: str, dag_id: str, task_id: str, *, attempt: int, mapped: int, due: datetime) -> RunName:
    """A task of Airflow's, by the number of its try and its place among mapped ones (-1: it is none)."""
    data = f"{namespace}.{dag_id}.{task_id}.{attempt}.{mapped}"
    return RunName(namespace, f"{dag_id}.{task_id}", run_uuid(due, data))
