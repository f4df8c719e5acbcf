"""Client of Airflow's public REST API, limited to the needs of console, demo and tests: trigger, wait, read logs."""

import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx
from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from manifold.contracts.errors import Permanent, Retryable

ENDED = ("success", "failed")
LOOK_S = 0.5


class AirflowApi:
    """A client of one Airflow; a context manager. `base` is its URL, such as http://127.0.0.1:8080; `verify` is httpx's.

    It logs in as `user` on the first request, and again when the token has expired.
    """

    def __init__(
        self, base: str, user: str, password: str, *, timeout_s: float = 30, verify: ssl.SSLContext | bool = True
    ) -> None:
        self._base = base
        self._login = {"username": user, "password": password}
        self._client = httpx.Client(base_url=base, timeout=timeout_s, verify=verify)
        self._token = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._client.close()

    def knows(self, dag_id: str) -> bool:
        """Whether the DAG is parsed and can be triggered; shortly after a first start it is not."""
        return self._ask("GET", f"/dags/{quote(dag_id)}", missing_is_none=True) is not None

    def wait_known(self, dag_id: str, *, within_s: float) -> None:
        """Wait until the DAG is parsed.

        Raises:
            Retryable: it was not parsed within `within_s` seconds.
        """
        poll = Retrying(retry=retry_if_result(lambda known: not known), wait=wait_fixed(LOOK_S), stop=stop_after_delay(within_s))
        try:
            poll(self.knows, dag_id)
        except RetryError as exc:
            raise Retryable(f"Airflow at {self._base} has not read {dag_id} within {within_s:g} s; see its log") from exc

    def trigger_dag(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> str:
        """Start a run without a logical date; return its id. `conf` contains the DAG's params.

        Raises:
            Permanent: there is no such DAG, or it refuses the params.
            Retryable: Airflow does not answer.
        """
        answer = self._ask("POST", f"/dags/{quote(dag_id)}/dagRuns", json={"logical_date": None, "conf": dict(conf or {})})
        return str(answer["dag_run_id"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return `queued`, `running`, `success` or `failed`."""
        return str(self.run(dag_id, run_id)["state"])

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """Return Airflow's record of a run: `run_after` (when it was due), `start_date`, `end_date` and more."""
        found: dict[str, Any] = self._ask("GET", _run(dag_id, run_id))
        return found

    def task(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """Return the record of the last attempt at a task: `queued_when`, `start_date`, `end_date` and more."""
        return next(task for task in self._tasks(dag_id, run_id) if task["task_id"] == task_id)

    def wait(self, dag_id: str, run_id: str, *, within_s: float) -> str:
        """Wait until the run ends; return `success` or `failed`.

        Raises:
            Retryable: it has not ended within `within_s` seconds.
        """
        poll = Retrying(
            retry=retry_if_result(lambda state: state not in ENDED), wait=wait_fixed(LOOK_S), stop=stop_after_delay(within_s)
        )
        try:
            return str(poll(self.run_state, dag_id, run_id))
        except RetryError as exc:
            raise Retryable(
                f"run {run_id} of {dag_id} has not ended within {within_s:g} s; see {self._base}/dags/{dag_id}"
            ) from exc

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """Return the state of each task of a run, by task id; None: no state yet."""
        return {task["task_id"]: task["state"] for task in self._tasks(dag_id, run_id)}

    def result(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """Return the result of a task."""
        path = f"{_run(dag_id, run_id)}/taskInstances/{quote(task_id)}/xcomEntries/return_value"
        return self._ask("GET", f"{path}?deserialize=true")["value"]

    def task_log(self, dag_id: str, run_id: str, task_id: str, attempt: int = 1) -> str:
        """Return the log of one attempt at a task, one line per record."""
        answer = self._ask("GET", f"{_run(dag_id, run_id)}/taskInstances/{quote(task_id)}/logs/{attempt}")
        return "\n".join(line if isinstance(line, str) else str(line.get("event", "")) for line in answer["content"])

    def _tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask("GET", f"{_run(dag_id, run_id)}/taskInstances")["task_instances"]
        return found

    def _ask(self, method: str, path: str, *, missing_is_none: bool = False, **body: Any) -> Any:
        try:
            answer = self._send(method, path, **body)
            if answer.status_code == httpx.codes.UNAUTHORIZED:  # no token yet, or it has expired
                self._log_in()
                answer = self._send(method, path, **body)
        except httpx.HTTPError as exc:
            raise Retryable(f"Airflow at {self._base} does not answer ({exc}); is it running? See `manifold status`") from exc
        if missing_is_none and answer.status_code == httpx.codes.NOT_FOUND:
            return None
        if answer.is_server_error:
            raise Retryable(f"{method} {path}: Airflow at {self._base} answers {answer.status_code}; see its log, then try again")
        if answer.is_error:
            raise Permanent(f"{method} {path}: Airflow refuses with {answer.status_code}: {_reason(answer)}")
        return answer.json()

    def _log_in(self) -> None:
        answer = self._client.post("/auth/token", json=self._login)
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            raise Permanent(f"Airflow at {self._base} does not let {self._login['username']} in: {_reason(answer)}")
        self._token = str(answer.raise_for_status().json()["access_token"])

    def _send(self, method: str, path: str, **body: Any) -> httpx.Response:
        headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {self._token}"} if self._token else {})
        return self._client.request(method, f"/api/v2{path}", headers=headers, **body)


def _run(dag_id: str, run_id: str) -> str:
    return f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"


def _reason(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]
