"""A REST catalog that requires AWS signatures (SigV4) and recomputes them: the requests of both engines."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from manifold.contracts.tables import IDS
from tests.pipelines.makers import data, trigger
from tests.stores.auth_proxy import before_a_catalog, behind
from tests.stores.servers import BOTO3, require
from tests.stores.signatures import KEY, REGION, SECRET, SERVICE, SigningProxy, refusal, signature_of
from tests.stores.stages import Failed, Stages
from tests.support.servers import Server

NOW = datetime(2026, 11, 22, 9, 30, tzinfo=UTC)
SCOPE = f"20261122/{REGION}/{SERVICE}/aws4_request"
SIGNING = {"rest.sigv4-enabled": "true", "rest.signing-region": REGION, "rest.signing-name": SERVICE}


def keys(secret: str) -> dict[str, str]:
    """The credentials by the property names of each engine."""
    spark = {"rest.access-key-id": KEY, "rest.secret-access-key": secret}
    return spark | {"client.access-key-id": KEY, "client.secret-access-key": secret}


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SigningProxy]:
    require(BOTO3)
    with before_a_catalog(SigningProxy, tmp_path_factory.mktemp("signed")) as proxy:
        yield proxy


@pytest.mark.slow
def test_both_engines_sign_every_request(proxy: SigningProxy, jobs: Stages, tmp_path: Path, redis_server: Server) -> None:
    lake = behind(proxy, tmp_path, redis_server, **SIGNING, **keys(SECRET))
    lake.archive(data(1, "signed", b"firmware"), trigger(2, ["V1", "V2"], "signed"))

    result = jobs.run("run_all --no-flush", lake.variables)

    assert proxy.refusals == []
    assert result["ingested"]["written"][IDS.name] == 2
    asked = set(proxy.signed)
    assert asked >= {("PyIceberg", "GET"), ("PyIceberg", "POST"), ("Apache", "GET"), ("Apache", "POST")}


@pytest.mark.slow
def test_an_invalid_key_names_the_setting_to_correct(
    proxy: SigningProxy, jobs: Stages, tmp_path: Path, redis_server: Server
) -> None:
    lake = behind(proxy, tmp_path, redis_server, **SIGNING, **keys("another-secret"))

    with pytest.raises(Failed, match=r"refuses the login \(.*the signature does not match.*client\.access-key-id") as failed:
        jobs.run("discover --no-flush", lake.variables)

    assert failed.value.status == "5"  # a retry would change nothing
    assert "another-secret" not in failed.value.output


def test_the_proxy_computes_signatures_as_aws_does() -> None:
    """AWS's own example, `get-vanilla` of their test suite."""
    headers = {"host": "example.amazonaws.com", "x-amz-date": "20150830T123600Z"}

    signature = signature_of("GET", "/", headers, [*headers], b"", scope="20150830/us-east-1/service/aws4_request")

    assert signature == "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param({}, "", id="unchanged"),
        pytest.param({"target": "/v1/fleet/namespaces/b?pageToken="}, "does not match", id="changed address"),
        pytest.param({"body": b"{ }"}, "another one than", id="changed body"),
        pytest.param({"method": "DELETE"}, "does not match", id="changed method"),
        pytest.param({"now": NOW + timedelta(minutes=6)}, "too long ago", id="replayed later"),
    ],
)
def test_the_proxy_admits_only_signed_requests(change: dict[str, object], why: str) -> None:
    body = b"{}"
    headers = {"host": "a", "x-amz-date": "20261122T093000Z", "x-amz-content-sha256": HASH_OF_BRACES}
    asked: dict[str, object] = {"method": "POST", "target": "/v1/fleet/namespaces/a?pageToken=", "body": body, "now": NOW}
    signature = signature_of("POST", "/v1/fleet/namespaces/a?pageToken=", headers, sorted(headers), body, scope=SCOPE)
    names = ";".join(sorted(headers))
    headers["authorization"] = f"AWS4-HMAC-SHA256 Credential={KEY}/{SCOPE}, SignedHeaders={names}, Signature={signature}"

    reason = refusal(headers=headers, **(asked | change))  # type: ignore[arg-type]

    assert why in reason
    assert bool(why) == bool(reason)


HASH_OF_BRACES = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
