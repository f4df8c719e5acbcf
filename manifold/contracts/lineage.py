"""OpenLineage names of a run: its id, and the parent run as one line of text.

OpenLineage's client and Airflow's provider compute the same ids, so that their events and Manifold's belong to one run.
"""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self
from uuid import UUID

# UUID version 7 (RFC 9562): 48 bits of Unix milliseconds, 4 bits version, 12 bits, 2 bits variant, 62 bits.
_VERSION_AND_VARIANT_BITS = 0b1111 << 76 | 0b11 << 62
_VERSION_7_AND_VARIANT = 7 << 76 | 0b10 << 62


def run_uuid(instant: datetime, data: str) -> str:
    """Return the id of a run that began, or was due, at `instant`: a UUID version 7.

    `data` distinguishes the runs of one instant. The id is always the same for the same arguments: a digest of both takes the
    place of the random bits.
    """
    at = instant.astimezone(UTC)
    unix_ms = int(at.timestamp() * 1000) % (1 << 48)
    digest = hashlib.sha1(at.isoformat().encode() + data.encode(), usedforsecurity=False).digest()
    digest_bits = int.from_bytes(digest) >> 84  # the first 76 of its 160 bits
    number = unix_ms << 80 | digest_bits
    return str(UUID(int=number & ~_VERSION_AND_VARIANT_BITS | _VERSION_7_AND_VARIANT))


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
            ValueError: the text is not `<namespace>/<job>/<run id>`, where the run id is a UUID.
        """
        namespace_and_job, _, run_id = text.rpartition("/")
        namespace, _, job = namespace_and_job.rpartition("/")
        if not namespace or not job:
            raise ValueError("must be <namespace>/<job>/<run id>")
        return cls(namespace, job, str(UUID(run_id)))


def task_run(namespace: str, dag_id: str, task_id: str, *, attempt: int, mapped: int, due: datetime) -> RunName:
    """Return the run of an Airflow task.

    `mapped` is the task's index among mapped tasks, -1 if it is not mapped. `due` is the logical date of the DAG run or, if the
    run has none, its `run_after`.
    """
    data = f"{namespace}.{dag_id}.{task_id}.{attempt}.{mapped}"
    return RunName(namespace, f"{dag_id}.{task_id}", run_uuid(due, data))
