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
NO_EFFECT = "none"  # the API's `effect` of an order that the campaign's state does not allow

log = structlog.get_logger(__name__)


def give_order(settings: Settings, do: str, campaign: str, by: str, run_id: str, **fields: Any) -> dict[str, Any]:
    """Post the order `do` (one of `ORDERS`) in the name of the user `by`, and return the API's response.

    `fields` are the order's fields, such as `wave`; fields that are None are left out. An order that is repeated within the run
    `run_id` has the same token, so it takes effect once.

    `refuse` without a wave refuses the plan. `refuse` with a wave refuses the wave's gate, and posts nothing: a gate that nobody
    approves stays held.

    Raises:
        Permanent: a field is wrong, the API refuses the order, or the order had no effect.
        Retryable: the API does not answer, or answers with a server error.
    """
    if not is_id(campaign):
        raise Permanent(f"campaign {campaign!r} must be 1 to {MAX_ID} {NAME_RULE}")
    if not by:
        raise Permanent("no user triggered the run; trigger it as a user of Airflow, whose name is recorded with the order")
    wave = fields.get("wave")
    if do == "pass" and wave is None:
        raise Permanent("wave is missing; give the number of the open wave whose gate is to be passed (the first is 0)")
    if do == "refuse" and wave is not None:
        log.info("gate of wave not approved; it stays held", campaign=campaign, wave=wave, by=by)
        return {"campaign": campaign, "do": do, "by": by, "seq": None, "effect": "the gate stays held"}
    order = repr((run_id, do, campaign, by, sorted(fields.items())))
    token = hashlib.sha256(order.encode()).hexdigest()[:32]
    body = {name: value for name, value in fields.items() if value is not None} | {"token": token}
    response: dict[str, Any] = Api(settings, by).post(f"/campaigns/{campaign}/{do}", body)
    if response["effect"] == NO_EFFECT:
        raise Permanent(f"{do} of {campaign} is on record as {response['seq']} and had no effect: {response['reason']}")
    log.info(
        "order given to campaign",
        campaign=campaign,
        order=do,
        by=response["by"],
        seq=response["seq"],
        effect=response["effect"],
    )
    return response
