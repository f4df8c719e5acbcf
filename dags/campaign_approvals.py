"""### Ask people to approve plans, amendments and gates of campaigns.

**Reads** the campaigns by Manifold's API. **Writes** *approve* or *refuse* to the record of a campaign, in the name of the user
who answered. By its schedule a run looks which approvals are missing, and triggers a run of this DAG for each: it waits under
*Browse → Required Actions*, with the plan, its waves, warnings, and what gate and rules count now. It occupies no worker.

**Trigger it** with `campaign` (and `wave` for a gate) to be asked at once; without, to look through all campaigns.
**Do not trigger it** to approve a plan of your own: another person has to. A refused plan is over; a refused gate stays held.

**When it fails** the task `campaign_order` says why: the approval did not fit any more, or came from an author of the plan. Then
trigger it with `campaign`, and have another person answer. A question is asked again after 14 days, or if answered in a second.

**To back out** an approval, `campaign_control` with *pause* or *cancel*.

Owner: data-platform.
"""

from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Param, task

from dags._defaults import DAG_DEFAULTS, branching_job, by_cron, plain_job
from manifold.settings import load_settings

CAMPAIGN, WAVE = "--campaign={{ params['campaign'] }}", "--wave={{ '' if params['wave'] is none else params['wave'] }}"
ANSWER = "ti.xcom_pull(task_ids='approve')"


@task
def missing(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs to trigger, one per missing approval. A task of its own, because Airflow maps only over a task's whole result."""
    runs: list[dict[str, Any]] = found["runs"]
    return runs


with DAG(
    "campaign_approvals",
    tags=["campaigns"],
    doc_md=__doc__,
    params={
        "campaign": Param("", type="string", description="id of the campaign; empty: look through all"),
        "wave": Param(
            None, type=["null", "integer"], minimum=0, description="number of the wave whose gate it is; empty: the plan"
        ),
    },
    # Runs wait for people's decisions, so many are active at once, and none has a deadline.
    **DAG_DEFAULTS | by_cron(load_settings().campaign_approvals_schedule) | {"max_active_runs": 500, "deadline": None},
):
    asks = branching_job("campaign_asks", CAMPAIGN, WAVE)
    ask = TriggerDagRunOperator.partial(task_id="ask", trigger_dag_id="campaign_approvals", skip_when_already_exists=True)
    asked: Any = asks.output  # a reference to the task's result, which Airflow resolves once the task has run
    ask.expand_kwargs(missing(asked))
    approve = HITLOperator(
        task_id="approve",
        subject="{{ ti.xcom_pull(task_ids='campaign_asks')['subject'] }}",
        body="{{ ti.xcom_pull(task_ids='campaign_asks')['body'] }}",
        options=["Approve", "Refuse"],
        params={"why": Param("", type="string", description="why; it is kept on record")},
        response_timeout=timedelta(days=14),
    )
    plan_sha256 = "--plan-sha256={{ ti.xcom_pull(task_ids='campaign_asks')['plan_sha256'] }}"
    why, by = f"--why={{{{ {ANSWER}['params_input']['why'] }}}}", f"--by={{{{ {ANSWER}['responded_by_user']['name'] }}}}"
    do = f"--do={{{{ {ANSWER}['chosen_options'][0] | lower }}}}"
    asks >> approve >> plain_job("campaign_order", CAMPAIGN, WAVE, plan_sha256, why, by, do)
