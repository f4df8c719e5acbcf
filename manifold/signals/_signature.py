"""Signature check: a valid signature proves that the sender has the secret. Pure."""

import hmac
import re
from collections.abc import Sequence

from manifold.contracts.signals import signing
from manifold.contracts.signals.codes import Code, Refusal
from manifold.contracts.signals.signing import signature
from manifold.signals._received import ALGORITHM, NONCE, SIGNATURE, TIMESTAMP, Received

ALGORITHMS = (signing.ALGORITHM,)
_HEX_64, _HEX_32 = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{32}")
_MAX_TIMESTAMP_LENGTH = 64  # characters


def check_signature(received: Received, device_id: str, secrets: Sequence[str]) -> Refusal | None:
    """Return why the signature is refused, or None if it is valid. `secrets` are the accepted secrets, at least one."""
    given, timestamp = received.header(SIGNATURE), received.header(TIMESTAMP)
    nonce, algorithm = received.header(NONCE), received.header(ALGORITHM)
    for name, value in ((SIGNATURE, given), (TIMESTAMP, timestamp), (NONCE, nonce), (ALGORITHM, algorithm)):
        if value is None:
            return Refusal(Code.SIGNATURE_ERROR, f"the header {name} is missing", f"{name}: sign the message")
    assert given is not None
    assert timestamp is not None
    assert nonce is not None
    assert algorithm is not None
    if algorithm not in ALGORITHMS:
        return Refusal(Code.SIGNATURE_ERROR, "the algorithm is not known", f"{ALGORITHM}: {' or '.join(ALGORITHMS)}")
    if not _HEX_32.fullmatch(nonce):
        return Refusal(Code.SIGNATURE_ERROR, "the nonce is invalid", f"{NONCE}: 32 lower-case hex digits")
    if not _HEX_64.fullmatch(given) or len(timestamp) > _MAX_TIMESTAMP_LENGTH:
        return Refusal(Code.SIGNATURE_ERROR, "the signature is invalid", f"{SIGNATURE}: 64 lower-case hex digits")
    is_valid = False
    signed = {"device_id": device_id, "nonce": nonce, "timestamp": timestamp, "algorithm": algorithm}
    for secret in secrets:  # try all secrets even after a match, for constant time
        is_valid |= hmac.compare_digest(signature(received.body, secret, **signed), given)
    if is_valid:
        return None
    return Refusal(Code.SIGNATURE_ERROR, "the signature is not of this message", f"{SIGNATURE}: sign the bytes that are sent")
