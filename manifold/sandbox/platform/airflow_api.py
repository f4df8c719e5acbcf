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
POLL_INTERVAL_S = 0.5


class AirflowApi:
    """A client of one Airflow, and a context manager.

    `base` is Airflow's URL, such as http://127.0.0.1:8080; `verify` is passed to httpx. The client logs in as `user` on its first
    request, and again when its token has expired.
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
        """Whether Airflow has parsed the DAG, so that it can be triggered. Shortly after a first start it has not."""
        return self._request("GET", f"/dags/{quote(dag_id)}", missing_is_none=True) is not None

    def wait_known(self, dag_id: str, *, within_s: float) -> None:
        """Wait until Airflow has parsed the DAG.

        Raises:
            Retryable: the DAG was not parsed within `within_s` seconds.
        """
        poll = Retrying(
            retry=retry_if_result(lambda known: not known), wait=wait_fixed(POLL_INTERVAL_S), stop=stop_after_delay(within_s)
        )
        try:
            poll(self.knows, dag_id)
        except RetryError as exc:
            raise Retryable(f"Airflow at {self._base} has not read {dag_id} within {within_s:g} s; see its log") from exc

    def trigger_dag(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> str:
        """Start a run without a logical date, and return its id. `conf` contains the DAG's params.

        Raises:
            Permanent: there is no such DAG, or the params are invalid.
            Retryable: Airflow does not answer.
        """
        answer = self._request("POST", f"/dags/{quote(dag_id)}/dagRuns", json={"logical_date": None, "conf": dict(conf or {})})
        return str(answer["dag_run_id"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return `queued`, `running`, `success` or `failed`."""
        return str(self.run(dag_id, run_id)["state"])

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """Return Airflow's record of a run, with `run_after` (when the run was due), `start_date`, `end_date` and more."""
        record: dict[str, Any] = self._request("GET", _run_path(dag_id, run_id))
        return record

    def task(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """Return Airflow's record of the last attempt at a task, with `queued_when`, `start_date`, `end_date` and more."""
        return next(task for task in self._tasks(dag_id, run_id) if task["task_id"] == task_id)

    def wait(self, dag_id: str, run_id: str, *, within_s: float) -> str:
        """Wait until the run ends; return `success` or `failed`.

        Raises:
            Retryable: the run has not ended within `within_s` seconds.
        """
        poll = Retrying(
            retry=retry_if_result(lambda state: state not in ENDED),
            wait=wait_fixed(POLL_INTERVAL_S),
            stop=stop_after_delay(within_s),
        )
        try:
            return str(poll(self.run_state, dag_id, run_id))
        except RetryError as exc:
            raise Retryable(
                f"run {run_id} of {dag_id} has not ended within {within_s:g} s; see {self._base}/dags/{dag_id}"
            ) from exc

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """Return the state of each task of a run, by task id; None for a task that has no state yet."""
        return {task["task_id"]: task["state"] for task in self._tasks(dag_id, run_id)}

    def result(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """Return the result of a task."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/xcomEntries/return_value"
        return self._request("GET", f"{path}?deserialize=true")["value"]

    def task_log(self, dag_id: str, run_id: str, task_id: str, attempt: int = 1) -> str:
        """Return the log of one attempt at a task, one line per record."""
        answer = self._request("GET", f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/logs/{attempt}")
        return "\n".join(_log_line(record) for record in answer["content"])

    def _tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        answer = self._request("GET", f"{_run_path(dag_id, run_id)}/taskInstances")
        records: list[dict[str, Any]] = answer["task_instances"]
        return records

    def _request(self, method: str, path: str, *, missing_is_none: bool = False, **body: Any) -> Any:
        """Send a request, logged in, and return the parsed JSON. With `missing_is_none`, return None on 404.

        Raises:
            Retryable: Airflow does not answer, or has an internal error.
            Permanent: Airflow refuses the request, or the login.
        """
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
        """Get a token for the next requests.

        Raises:
            Permanent: Airflow refuses user or password.
            httpx.HTTPError: the request fails in another way.
        """
        answer = self._client.post("/auth/token", json=self._login)
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            raise Permanent(f"Airflow at {self._base} does not let {self._login['username']} in: {_reason(answer)}")
        self._token = str(answer.raise_for_status().json()["access_token"])

    def _send(self, method: str, path: str, **body: Any) -> httpx.Response:
        headers = {"Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        return self._client.request(method, f"/api/v2{path}", headers=headers, **body)


def _run_path(dag_id: str, run_id: str) -> str:
    return f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"


def _log_line(record: str | dict[str, Any]) -> str:
    """Return the text of a log record, which is a line, or an object with the text as its `event`."""
    return record if isinstance(record, str) else str(record.get("event", ""))


def _reason(answer: httpx.Response) -> str:
    """Return Airflow's reason for an error; if it gives none, the beginning of its answer."""
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]
