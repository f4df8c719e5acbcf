"""Gives an order to a campaign for a user of Airflow."""

import hashlib
from typing import Any

import structlog

from manifold.contracts.errors import Permanent
from manifold.contracts.messages import NAME_RULE
from manifold.contracts.names import MAX_ID, is_id
from manifold.settings import Settings
from pipelines.campaigns.api import Api

ORDERS = ("pause", "resume", "cancel", "pass", "retry", "approve", "refuse")
NONE = "none"  # the effect of an order that did not fit

log = structlog.get_logger(__name__)


def give_order(settings: Settings, do: str, campaign: str, by: str, run_id: str, **fields: Any) -> dict[str, Any]:
    """Post the order `do` (one of `ORDERS`) and return the API's answer.

    `fields` are those of the order, such as `wave`; None ones are left out. A repeat within the same run has the same token, so
    it counts once. `refuse` with a `wave` posts nothing: a gate that nobody approves stays held. Without one it refuses the plan.

    Raises:
        Permanent: a field is wrong, or the API refuses the order.
        Retryable: the API does not answer, or cannot now.
    """
    if not is_id(campaign):
        raise Permanent(f"campaign {campaign!r} must be 1 to {MAX_ID} {NAME_RULE}")
    if not by:
        raise Permanent("no user triggered the run; trigger it as a user of Airflow, whose name is recorded with the order")
    wave = fields.get("wave")
    if do == "pass" and wave is None:
        raise Permanent("wave is missing; give the number of the open wave whose gate is to be passed (the first is 0)")
    if do == "refuse" and wave is not None:
        log.info("gate not approved; it stays held", campaign=campaign, wave=wave)
        return {"campaign": campaign, "do": do, "by": by, "seq": None, "effect": "the gate stays held"}
    token = hashlib.sha256(repr((run_id, do, campaign, by, sorted(fields.items()))).encode()).hexdigest()[:32]
    body = {name: value for name, value in fields.items() if value is not None} | {"token": token}
    answer: dict[str, Any] = Api(settings, by).post(f"/campaigns/{campaign}/{do}", body)
    if answer["effect"] == NONE:
        raise Permanent(f"{do} of {campaign} is on record as {answer['seq']} and had no effect: {answer['reason']}")
    log.info("campaign ordered", campaign=campaign, do=do, by=answer["by"], seq=answer["seq"], effect=answer["effect"])
    return answer
