"""The history of each pod, revision by revision, from etcd."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from tests.infra.cluster import Cluster, Json


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod after one of its changes."""

    app: str
    node: str
    ready: bool
    ending: bool

    @property
    def serves(self) -> bool:
        """Whether it is ready and not terminating."""
        return self.ready and not self.ending


Moment = dict[str, Pod]


def now(api: Cluster, namespace: str) -> str:
    """The current revision."""
    revision: str = api.ask(f"/api/v1/namespaces/{namespace}/pods?limit=1")["metadata"]["resourceVersion"]
    return revision


def pods(api: Cluster, namespace: str) -> Moment:
    """The current pods by name."""
    return {each["metadata"]["name"]: _pod(each) for each in api.ask(f"/api/v1/namespaces/{namespace}/pods")["items"]}


def since(api: Cluster, namespace: str, revision: str) -> list[Moment]:
    """All pods before the first change after that revision and after each later change, oldest first."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    then = api.ask(f"{path}?resourceVersion={revision}&resourceVersionMatch=Exact")["items"]
    at_last = {each["metadata"]["uid"]: each["metadata"]["resourceVersion"] for each in api.ask(path)["items"]}
    found = {each["metadata"]["uid"]: each for each in then}
    moments = [_moment(found)]
    for event in _events(api, f"{path}?watch=1&resourceVersion={revision}", lambda: _revisions(found) == at_last):
        uid = event["object"]["metadata"]["uid"]
        if event["type"] == "DELETED":
            del found[uid]
        else:
            found[uid] = event["object"]
        moments.append(_moment(found))
    return moments


def of(app: str, moments: list[Moment]) -> list[Moment]:
    """The same for one service's pods."""
    return [{name: pod for name, pod in moment.items() if pod.app == app} for moment in moments]


def serving(moment: Moment) -> int:
    """The number of serving pods."""
    return sum(pod.serves for pod in moment.values())


def ended(moments: list[Moment]) -> list[str]:
    """The terminated pods in order."""
    return [
        name
        for before, after in pairwise(moments)
        for name, pod in after.items()
        if pod.ending and not (name in before and before[name].ending)
    ]


def _events(api: Cluster, path: str, caught_up: Callable[[], bool]) -> Iterator[Json]:
    if caught_up():
        return
    with api.client.stream("GET", path) as stream:
        for line in stream.iter_lines():
            event: Json = json.loads(line)
            assert event["type"] in {"ADDED", "MODIFIED", "DELETED"}, event
            yield event
            if caught_up():
                return


def _revisions(found: dict[str, Json]) -> dict[str, str]:
    return {uid: each["metadata"]["resourceVersion"] for uid, each in found.items()}


def _moment(found: dict[str, Json]) -> Moment:
    return {each["metadata"]["name"]: _pod(each) for each in found.values()}


def _pod(each: Json) -> Pod:
    metadata, conditions = each["metadata"], each["status"].get("conditions", [])
    ready = any(found["type"] == "Ready" and found["status"] == "True" for found in conditions)
    node = each["spec"].get("nodeName", "")
    app = metadata["labels"].get("app.kubernetes.io/name", "")
    return Pod(app, node, ready, "deletionTimestamp" in metadata)
