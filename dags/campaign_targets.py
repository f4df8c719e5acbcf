"""### Resolve the list of a proposed campaign.

**Reads** what the plan names under `targets`: a file below `_lists/` of the archive, data that was published like any other, or
how the vehicles of a batch or of another campaign have ended, in the lake. **Writes** the list to the campaign's record, in the
name of the user who triggers the run, once it has passed: VINs valid and each there once, zones and waves known, at least one
vehicle. Its report is among the quality reports.

**Trigger it** with `campaign` after the proposal; people are asked to approve when the list is on record.
**Do not trigger it** for a plan that lists its vehicles itself.

**When it fails** for a rule, nothing is recorded, and the campaign stays a proposal: the report names rows. Put another file
there, or refuse the campaign and propose it again under another id. When broker or recorder were away, clear the task: it
records what is missing.

**To back out** refuse the proposal: a recorded list is not taken back.

Owner: data-platform.
"""

from airflow.sdk import DAG, Param

from dags._defaults import DAG_DEFAULTS, spark_job
from dags._jobs import QualityReport

with DAG(
    "campaign_targets",
    schedule=None,
    tags=["campaigns", "lake"],
    doc_md=__doc__,
    params={"campaign": Param("", type="string", description="id of the campaign")},
    **DAG_DEFAULTS,
):
    campaign, by = "--campaign={{ params['campaign'] }}", "--by={{ dag_run.triggering_user_name or '' }}"
    spark_job("campaign_targets", campaign, by, links=[QualityReport()])
