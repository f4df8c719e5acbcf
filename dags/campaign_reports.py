"""### Prove campaigns from the lake.

**Reads** orders, targets, releases, outcomes and answers in the lake. **Writes** to the quality reports, below *campaigns*, a
page for each campaign with its proof as JSON and its targets as CSV. The whole record is replayed: no vehicle twice, none outside
its window, none over the rate or after a stop, no wave without gate and approvals, and every count of every decision.

**It runs** every day, for campaigns with an order in the last `days`. **Trigger it** with `campaign` when one has completed.
**Do not trigger it** for what has just happened: the lake has what `ingest_archives` has ingested.

**When it fails** the log and the page name what contradicts the plan, with seq and vehicle. It looks three times, because tables
of a run become visible one after the other. What stays is real, or rows are missing: trigger `check_lake`, then clear the task.

**To back out** there is nothing to do: it writes pages alone, and the next run writes them again.

Owner: data-platform.
"""

from airflow.sdk import DAG, Param

from dags._defaults import DAG_DEFAULTS, by_cron, plain_job
from manifold.settings import load_settings

with DAG(
    "campaign_reports",
    tags=["campaigns", "lake"],
    doc_md=__doc__,
    params={
        "campaign": Param("", type="string", description="id of a campaign; empty: all of the last days"),
        "days": Param(8, type="number", minimum=0, maximum=36500, description="with an order so many days ago or later; 0: all"),
    },
    **DAG_DEFAULTS | by_cron(load_settings().campaign_reports_schedule),
):
    plain_job("campaign_reports", "--campaign={{ params['campaign'] }}", "--days={{ params['days'] }}")
