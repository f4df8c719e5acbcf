"""OpenLineage events (2-0-2) of a run: its start and its end."""

from collections.abc import Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from manifold.contracts.lineage import RunName
from manifold.settings import Settings

SPEC = "https://openlineage.io/spec"
PRODUCER = "urn:manifold:lineage"
MAX_ERROR_LENGTH = 2000  # in characters

Json = dict[str, Any]


class RunResult(StrEnum):
    """How a run ended. The values are OpenLineage's event types."""

    COMPLETE = "COMPLETE"
    FAIL = "FAIL"
    ABORT = "ABORT"  # the run was interrupted


# The run of the job that calls the current code; None outside jobs that emit lineage.
ENCLOSING_RUN: ContextVar[RunName | None] = ContextVar("ENCLOSING_RUN", default=None)


def facet(version: str, name: str, **content: object) -> Json:
    """A facet that the OpenLineage specification defines as `name` in `version`."""
    return {"_producer": PRODUCER, "_schemaURL": f"{SPEC}/facets/{version}/{name}.json#/$defs/{name}", **content}


def start_event(settings: Settings, run: RunName, at: datetime, inputs: Sequence[Json] = (), **facets: Json) -> Json:
    """The start event of a run. Its parent is the enclosing run; without one, the run that the setting `lineage_parent` names."""
    parent = ENCLOSING_RUN.get()
    if parent is None and settings.lineage_parent:
        parent = RunName.parse(settings.lineage_parent)
    if parent is not None:
        parent_names = {"run": {"runId": parent.run_id}, "job": {"namespace": parent.namespace, "name": parent.job}}
        facets = {"parent": facet("1-1-0", "ParentRunFacet", **parent_names), **facets}
    return {
        "eventTime": at.astimezone(UTC).isoformat(timespec="milliseconds"),
        "eventType": "START",
        "producer": PRODUCER,
        "schemaURL": f"{SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent",
        "job": {"namespace": run.namespace, "name": run.job},
        "run": {"runId": run.run_id, "facets": facets},
        "inputs": list(inputs),
        "outputs": [],
    }


def end_event(
    start: Json, result: RunResult, at: datetime, outputs: Sequence[Json] = (), error: str = "", **fields: object
) -> Json:
    """The end event of the run whose start event is `start`. `fields` replace the event's fields, such as `inputs`.

    `error` says why the run failed, and must not contain row values, because it leaves the platform.
    """
    facets = dict(start["run"]["facets"])
    if error:
        message = error[:MAX_ERROR_LENGTH]
        facets["errorMessage"] = facet("1-0-0", "ErrorMessageRunFacet", message=message, programmingLanguage="PYTHON")
    return start | {
        "eventTime": at.astimezone(UTC).isoformat(timespec="milliseconds"),
        "eventType": result.value,
        "run": {"runId": start["run"]["runId"], "facets": facets},
        "outputs": list(outputs),
        **fields,
    }
