"""### Stop a campaign, or let it go on.

**Reads** nothing. **Writes** one order to the campaign's record, in the name of the user who triggers the run; from there
dispatchers and campaigner obey it.

**Trigger it** to *pause* (nothing is sent any more until it is resumed), *resume*, *cancel* for good, *pass* a gate that does
not hold, or *retry* what has failed. Say why: it is kept on record. `resume` names in `accept` the rules that tripped, `pass` the
open `wave`, `retry` how targets `ended`. **Do not trigger it** to pause while Manifold's API is away: `manifold campaign pause`
needs neither it nor Airflow. Approvals are given under *Required Actions*.

**When it fails** the last line of the log says why: the order did not fit the campaign, or was not recorded. An order that was
recorded is not given again: clear the task.

**To back out** give the opposite order: resume after pause, pause after resume. Nothing takes back *cancel*, or a passed gate.

Owner: data-platform.
"""

from airflow.sdk import DAG, Param

from dags._defaults import DAG_DEFAULTS, plain_job

with DAG(
    "campaign_control",
    schedule=None,
    tags=["campaigns"],
    doc_md=__doc__,
    params={
        "campaign": Param("", type="string", description="id of the campaign"),
        "do": Param("pause", type="string", enum=["pause", "resume", "cancel", "pass", "retry"], description="the order"),
        "why": Param("", type="string", maxLength=1000, description="why; it is kept on record"),
        "wave": Param(None, type=["null", "integer"], minimum=0, description="of pass: number of the open wave, from 0"),
        "accept": Param([], type="array", items={"type": "string"}, description="of resume: the rules that tripped"),
        "ended": Param(["failed"], type="array", items={"type": "string"}, description="of retry: how the targets had ended"),
    },
    **DAG_DEFAULTS | {"max_active_runs": 16},  # so that a pause need not wait while Airflow retries another order
):
    plain_job(
        "campaign_order",
        "--campaign={{ params['campaign'] }}",
        "--do={{ params['do'] }}",
        "--why={{ params['why'] }}",
        "--wave={{ '' if params['wave'] is none else params['wave'] }}",
        "--accept={{ params['accept'] | join(',') }}",
        "--ended={{ params['ended'] | join(',') }}",
        "--by={{ dag_run.triggering_user_name or '' }}",
    )
