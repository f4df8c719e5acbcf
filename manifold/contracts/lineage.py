"""OpenLineage names of a run: its id, and the parent run as one line of text.

OpenLineage's client and Airflow's provider compute the same ids, so that their events and Manifold's belong to one run.
"""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self
from uuid import UUID


def run_uuid(instant: datetime, data: str) -> str:
    """Return the id of a run that began, or was due, at `instant`: a deterministic UUID version 7."""
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
        """Parse the text form; a namespace may contain slashes.

        Raises:
            ValueError: the text is not `<namespace>/<job>/<run id>`.
        """
        namespace, job, run_id = ("", *text.rsplit("/", 2))[-3:]
        if not (namespace and job):
            raise ValueError("must be <namespace>/<job>/<run id>")
        return cls(namespace, job, str(UUID(run_id)))


def task_run(namespace: str, dag_id: str, task_id: str, *, attempt: int, mapped: int, due: datetime) -> RunName:
    """Return the run of an Airflow task; `mapped` is its index among mapped tasks, -1 if it is not mapped."""
    data = f"{namespace}.{dag_id}.{task_id}.{attempt}.{mapped}"
    return RunName(namespace, f"{dag_id}.{task_id}", run_uuid(due, data))
