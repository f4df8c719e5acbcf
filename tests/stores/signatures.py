"""A proxy before the catalog that admits AWS-signed requests (Signature Version 4) and recomputes every signature.

Written from AWS's description without their libraries, which are under test.
"""

import hashlib
import hmac
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, quote, urlsplit

from tests.stores.auth_proxy import CLIENT, AuthProxy

KEY, SECRET, REGION, SERVICE = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "eu-west-1", "s3tables"
ALGORITHM, CONTENT = "AWS4-HMAC-SHA256", "x-amz-content-sha256"
SIGNED = re.compile(rf"{ALGORITHM} Credential=([^,]+), ?SignedHeaders=([^,]+), ?Signature=([0-9a-f]{{64}})")
TOO_OLD = timedelta(minutes=5)


class SigningProxy(AuthProxy):
    """Admit requests that `KEY` signed just now for this region and service; count them by engine and method."""

    def __init__(self, behind: str, vended: Mapping[str, str]) -> None:
        super().__init__(behind, vended)
        self.signed = Counter[tuple[str, str]]()
        self.refusals: list[str] = []

    def refusal(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> str:
        """Why the signature is invalid."""
        given = {name.lower(): value for name, value in headers.items()}
        why = refusal(method, target, given, body, now=datetime.now(UTC))
        if why:
            self.refusals.append(why)
        else:
            self.signed[given.get(CLIENT.lower(), "").split()[0], method] += 1
        return why


def refusal(method: str, target: str, headers: Mapping[str, str], body: bytes, *, now: datetime) -> str:
    """Why a request is not signed by `KEY` for this region and service; empty if it is. Header names are lower case."""
    signed = SIGNED.fullmatch(headers.get("authorization", ""))
    if signed is None:
        return "the request is not signed"
    credential, names, signature = signed.groups()
    at = headers.get("x-amz-date", "")
    if credential != f"{KEY}/{at[:8]}/{REGION}/{SERVICE}/aws4_request":
        return f"signed by or for somebody else: {credential}"
    if abs(now - datetime.strptime(at, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)) > TOO_OLD:
        return f"signed too long ago: {at}"
    if not {"host", "x-amz-date"} <= {*names.split(";")}:
        return f"too little is signed: {names}"
    digest = hashlib.sha256(body)
    # Java encodes it in base64, Python in hexadecimal.
    if headers.get(CONTENT) not in (None, digest.hexdigest(), b64encode(digest.digest()).decode()):
        return f"the body is another one than {CONTENT} says"
    if signature != signature_of(method, target, headers, names.split(";"), body, scope=credential.partition("/")[2]):
        return "the signature does not match"
    return ""


def signature_of(
    method: str, target: str, headers: Mapping[str, str], names: list[str], body: bytes, *, scope: str, secret: str = SECRET
) -> str:
    """The expected signature of a request: over its method, address, the named headers and its body, for this scope."""
    url = urlsplit(target)
    query = sorted((_quoted(name), _quoted(value)) for name, value in parse_qsl(url.query, keep_blank_values=True))
    canonical = [method, quote(url.path or "/", safe="/-_.~"), "&".join(f"{name}={value}" for name, value in query)]
    canonical += [f"{name}:{' '.join(headers[name].split())}" for name in names]
    canonical += ["", ";".join(names), hashlib.sha256(body).hexdigest()]
    asked = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, "\n".join([ALGORITHM, headers["x-amz-date"], scope, asked]).encode(), "sha256").hex()


def _quoted(text: str) -> str:
    return quote(text, safe="-_.~")
