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
MESSAGE = 2000  # maximum length of an error, in characters

Json = dict[str, Any]


class Ended(StrEnum):
    """How a run ended."""

    COMPLETE = "COMPLETE"
    FAIL = "FAIL"
    ABORT = "ABORT"  # it was stopped, or began again in another way


# The enclosing job, if it emits lineage itself.
UNDER: ContextVar[RunName | None] = ContextVar("UNDER", default=None)


def facet(version: str, name: str, **content: object) -> Json:
    """A facet of the OpenLineage specification."""
    return {"_producer": PRODUCER, "_schemaURL": f"{SPEC}/facets/{version}/{name}.json#/$defs/{name}", **content}


def begun(settings: Settings, run: RunName, at: datetime, inputs: Sequence[Json] = (), **facets: Json) -> Json:
    """The start event of a run. Its parent is the enclosing job, else the run that `lineage_parent` names."""
    parent = UNDER.get() or (RunName.parse(settings.lineage_parent) if settings.lineage_parent else None)
    if parent is not None:
        known = {"run": {"runId": parent.run_id}, "job": {"namespace": parent.namespace, "name": parent.job}}
        facets = {"parent": facet("1-1-0", "ParentRunFacet", **known), **facets}
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


def ended(start: Json, how: Ended, at: datetime, outputs: Sequence[Json] = (), why: str = "", **more: object) -> Json:
    """The end event of the run begun by `start`; `why` it failed must contain no row values."""
    facets = dict(start["run"]["facets"])
    if why:
        facets["errorMessage"] = facet("1-0-0", "ErrorMessageRunFacet", message=why[:MESSAGE], programmingLanguage="PYTHON")
    return start | {
        "eventTime": at.astimezone(UTC).isoformat(timespec="milliseconds"),
        "eventType": how.value,
        "run": {"runId": start["run"]["runId"], "facets": facets},
        "outputs": list(outputs),
        **more,
    }
