"""Client identity from certificates: every odd one, on both listeners, at the tap and by EMQX's own expressions.

EMQX joins several common names with commas. A client is `refused`, `powerless` (it may connect and nothing else), or `itself`: it
has the rights of its certificate's name, whatever it claims.
"""

import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from manifold.contracts.rights import Action
from manifold.contracts.tls import CA, REVOKED, TlsFiles
from manifold.runtime.tls import client_context
from manifold.sandbox.platform import certificates
from manifold.sandbox.platform.authority import FRONT_DOOR, ca_key, signer
from manifold.sandbox.tap.identity import Identity, is_platform, is_vehicle
from manifold.sandbox.tap.packets import Connect
from tests.manifold.sandbox.access import Client, allows
from tests.manifold.sandbox.tap.raw_connection import RawConnection
from tests.manifold.sandbox.tap.test_tls import Site
from tests.support.servers import ROOT, wait_until

EMQX = ROOT / "infra" / "emqx"
REFUSED, POWERLESS, ITSELF = "refused", "powerless", "itself"
VEHICLES, SERVICES = "vehicles", "services"

CELLS = [  # common names, listener, the tap, EMQX
    ((), VEHICLES, REFUSED, POWERLESS),
    ((), SERVICES, REFUSED, POWERLESS),
    (("",), VEHICLES, REFUSED, POWERLESS),
    (("",), SERVICES, REFUSED, POWERLESS),
    (("V1", "V2"), VEHICLES, REFUSED, ITSELF),
    (("V1", "V2"), SERVICES, REFUSED, ITSELF),
    (("V1", "sdv-recorder"), VEHICLES, REFUSED, ITSELF),
    (("V1", "sdv-recorder"), SERVICES, REFUSED, ITSELF),
    (("sdv-recorder", "V1"), VEHICLES, REFUSED, POWERLESS),
    (("sdv-recorder", "V1"), SERVICES, REFUSED, POWERLESS),
    (("#",), VEHICLES, POWERLESS, POWERLESS),
    (("#",), SERVICES, REFUSED, POWERLESS),
    (("+",), VEHICLES, POWERLESS, POWERLESS),
    (("+",), SERVICES, REFUSED, POWERLESS),
    (("w",), VEHICLES, REFUSED, POWERLESS),
    (("w",), SERVICES, REFUSED, ITSELF),
    (("r",), VEHICLES, REFUSED, POWERLESS),
    (("r",), SERVICES, REFUSED, ITSELF),
    (("V1",), VEHICLES, ITSELF, ITSELF),
    (("V1",), SERVICES, REFUSED, ITSELF),
    *(
        (("sdv-" + it,), VEHICLES, REFUSED, POWERLESS)
        for it in ("recorder", "dispatcher", "pub-a", "campaigns", "api", "listener", "nobody")
    ),
    *((("sdv-" + it,), SERVICES, ITSELF, ITSELF) for it in ("recorder", "dispatcher", "pub-a", "campaigns", "api", "listener")),
    (("sdv-nobody",), SERVICES, ITSELF, POWERLESS),  # no right on the tap either: no such user exists
]
SERVICE_NAMES = ("sdv-recorder", "sdv-dispatcher", "sdv-pub-a", "sdv-campaigns", "sdv-api", "sdv-listener")
CLAIMS = [(it, it) for it in ("", "V1", "V2", "w", *SERVICE_NAMES, "sdv-nobody")]
CLAIMS += [
    ("V2", "sdv-recorder"),
    ("sdv-recorder-0", "sdv-recorder"),
    ("sdv-dispatcher-0", "sdv-dispatcher"),
    ("#", ""),
    ("+", ""),
]
TOPICS = [
    *(
        "#",
        "$SDV-FANOUT/#",
        "$SDV-FANOUT/trigger",
        "$SDV-FANOUT/campaign",
        "$SDV-EVT/#",
        "$ECQ/#",
        "$ECQ/+/#",
        "$ECQ/w/#",
        "$ECQ/r/#",
        "$ECQ/w/V1/a",
    ),
    *("$ECQ/V1/#", "$ECQ/V2/#", "$ECQ/r/V1", "$ECQ/r/V2", "agent/+/#", "agent/V1/#", "agent/V2/#", "ecp/#", "ecp/V1/online"),
    *("ecp/V2/online", "agent/+/proxy/response/#", "agent/V1/proxy/request/r", "sdv/receipt/#", "sdv/receipt/sdv-pub-a/#"),
    *("sdv/receipt/sdv-campaigns/#", "sdv/receipt/sdv-api/#"),
    *("$events/message_acked", "$SYS/#", "ecp/+/online", "ecp/+/heartbeat"),
]


def ids(cell: object) -> str:
    return "none" if cell == () else "-and-".join(it or "empty" for it in cell) if isinstance(cell, tuple) else str(cell)


# EMQX: the expressions of tls.conf, which are also valid Python -----------------------------------------------------------


@cache
def expression(listener: str, of: str) -> str:
    vehicles, _, services = (EMQX / "tls.conf").read_text().partition("zones.platform.mqtt {")
    text = vehicles if listener == VEHICLES else services.partition("\n}")[0]
    (found,) = re.findall(rf'^  {of} = .*?"(.+?)"', text, re.MULTILINE)
    return str(found)


def value(text: str, **variables: str) -> str:
    """The value of the expression; EMQX treats an empty text and an unknown variable as false."""
    functions: dict[str, Any] = {
        "iif": lambda condition, then, otherwise: then if condition else otherwise,
        "concat": "".join,
        "regex_replace": lambda subject, pattern, by: re.sub(pattern, by, subject),
        "rand_str": lambda size: "x" * size,
    }
    return str(eval(text, {"__builtins__": {}}, functions | variables))  # from our own file


def on_emqx(names: tuple[str, ...], listener: str, client_id: str, username: str) -> Client:
    """The identity that EMQX gives such a client."""
    cn = ",".join(names)
    if cn:
        username = cn
        client_id = cn if listener == VEHICLES else client_id
    attribute = value(expression(listener, "client_attrs_init"), cn=cn)
    return Client(value(expression(listener, "clientid_override"), cn=cn, clientid=client_id), username, attribute)


def rights_on_emqx(client: Client) -> set[tuple[str, str]]:
    rules = (EMQX / "acl.conf").read_text()
    own = [f"$ECQ/{client.client_id}/#", f"agent/{client.client_id}/#", f"ecp/{client.client_id}/online"]
    return {(action, topic) for action in Action for topic in (*TOPICS, *own) if allows(rules, client, action, topic)}


@pytest.mark.parametrize(("names", "listener", "expected"), [(n, on, emqx) for n, on, _, emqx in CELLS], ids=ids)
def test_emqx_identifies_a_client_by_its_certificate_alone(names: tuple[str, ...], listener: str, expected: str) -> None:
    claimed = {claim: on_emqx(names, listener, *claim) for claim in CLAIMS}
    rights = {claim: rights_on_emqx(client) for claim, client in claimed.items()}

    if expected == POWERLESS:
        assert set().union(*rights.values()) == set()
        return
    name = ",".join(names)
    for claim, client in claimed.items():
        assert client.username == name
        assert client.client_id == name if listener == VEHICLES else client.client_id == f"{name}:{claim[0]}"
        others = set(SERVICE_NAMES) - {name}
        assert client.username not in others
    if name.startswith("sdv-"):  # a wildcard in its client id leaves it without rights
        same = {frozenset(right for right in each if right[1] in TOPICS) for each in rights.values() if each}
        assert len(same) == 1, "its rights must not depend on its claims"
    else:
        assert all(client.client_id in topic for claim, client in claimed.items() for _, topic in rights[claim])


# The tap: certificates with these names in a handshake --------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    found = Site(tmp_path_factory.mktemp("identities"))
    yield found
    found.stop()


def issued(site: Site, names: tuple[str, ...], *, ends_in_s: float = 3600) -> Path:
    """A certificate of the site's CA with these common names, and its key."""
    key, by = ec.generate_private_key(ec.SECP256R1()), signer(site.secrets, FRONT_DOOR)
    now, other = datetime.now(UTC), x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Cars")
    subject = x509.Name([other, *(x509.NameAttribute(NameOID.COMMON_NAME, it) for it in names)])
    builder = x509.CertificateBuilder(by.subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(seconds=ends_in_s))
    made = builder.sign(ca_key(site.secrets, FRONT_DOOR), hashes.SHA256())
    file = site.secrets / f"odd-{made.serial_number}.pem"
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM) + pem)
    return file


def port_of(site: Site, listener: str) -> int:
    return site.settings.mqtt_port if listener == VEHICLES else site.settings.mqtt_services_port


def outcome(port: int, context: ssl.SSLContext, claim: tuple[str, str], own: str, session: ssl.SSLSession | None = None) -> str:
    """What the tap does with a client that claims this."""
    client_id, username = claim
    try:
        with RawConnection(port, tls=context, session=session) as connection:
            if connection.open(client_id, username=username or None).reason:
                return REFUSED
            topic = {"sdv-recorder": "$SDV-FANOUT/#", "sdv-dispatcher": "$SDV-EVT/#", "sdv-listener": "ecp/#"}.get(own)
            topic = topic or (
                f"sdv/receipt/{own}/#"
                if own.startswith(("sdv-pub-", "sdv-campaigns", "sdv-api"))
                else "#"
                if client_id == "#"
                else f"agent/{client_id}/#"
            )
            may = connection.listen(topic).body[-1] < 0x80
            return ITSELF if may or own == "sdv-nobody" else POWERLESS
    except (EOFError, OSError):
        return REFUSED


IN_PER_HANDSHAKE = [(names, on, tap) for names, on, tap, _ in CELLS if names != ("",)]  # the library signs no empty name


@pytest.mark.parametrize(("names", "listener", "expected"), IN_PER_HANDSHAKE, ids=ids)
def test_the_tap_identifies_a_client_by_its_certificate_alone(
    site: Site, names: tuple[str, ...], listener: str, expected: str
) -> None:
    context = client_context(TlsFiles(str(site.secrets / CA), str(issued(site, names))))
    name = names[0] if len(names) == 1 else ""
    own = (name, name if listener == SERVICES else "")
    port = port_of(site, listener)

    assert outcome(port, context, own, name) == expected
    may = {own, (f"{name}-0", name)}
    assert {outcome(port, context, claim, name) for claim in CLAIMS if claim not in may and claim[0] != name} == {REFUSED}


@pytest.mark.parametrize(("names", "listener", "expected"), [(n, on, tap) for n, on, tap, _ in CELLS if n == ("",)], ids=ids)
def test_the_tap_treats_an_empty_name_as_none(names: tuple[str, ...], listener: str, expected: str) -> None:
    subject = tuple(((("commonName", it),)) for it in names)
    who = Identity.of({"subject": subject, "notAfter": "Jan  1 00:00:00 2099 GMT", "serialNumber": "0A"})
    rule = is_vehicle if listener == VEHICLES else is_platform

    assert expected == REFUSED
    assert not any(rule(who, Connect(client_id, 5, True, 60, username)) for client_id, username in CLAIMS)


# Certificates that are no longer valid ------------------------------------------------------------------------------------


@pytest.mark.parametrize("resumed", [False, True], ids=["anew", "resuming a TLS 1.2 session"])
@pytest.mark.parametrize("harm", ["ended", "revoked"])
@pytest.mark.parametrize("listener", [VEHICLES, SERVICES])
def test_the_tap_refuses_an_expired_or_revoked_certificate(site: Site, listener: str, harm: str, resumed: bool) -> None:
    name = f"V-{harm}-{resumed}" if listener == VEHICLES else f"sdv-pub-{harm}-{resumed}".lower()
    file = issued(site, (name,), ends_in_s=4 if harm == "ended" else 3600)
    context = client_context(TlsFiles(str(site.secrets / CA), str(file)))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    claim, port = (name, name if listener == SERVICES else ""), port_of(site, listener)
    with RawConnection(port, tls=context) as before:
        assert before.open(claim[0], username=claim[1] or None).reason == 0
        assert isinstance(before.socket, ssl.SSLSocket)
        session = before.socket.session
    if harm == "revoked":
        listed = (site.secrets / REVOKED).read_bytes() if (site.secrets / REVOKED).exists() else b""
        certificates.revoke(site.settings.home, [certificates.serial_of(file.read_bytes())])
        assert (site.secrets / REVOKED).read_bytes() != listed

    def is_refused() -> bool:
        return outcome(port, context, claim, name, session if resumed else None) == REFUSED

    wait_until(is_refused, within_s=30, what=f"a certificate that is {harm} to be refused")
    assert is_refused()


@pytest.mark.parametrize("listener", ["listeners.ssl.default", "listeners.ssl.platform"])
def test_emqx_verifies_the_certificate_of_every_connection(listener: str) -> None:
    """Ended: it verifies. Revoked: a ban, or a list where a site turns it on (docs/guides/emqx.md). Sessions are not resumed."""
    text = (EMQX / "tls.conf").read_text()
    block = text[text.index(f"{listener} {{") :].partition("\n}\n")[0]

    assert {"verify = verify_peer", "fail_if_no_peer_cert = true"} <= {line.strip() for line in block.splitlines()}
    assert re.search(r"^\s*reuse_sessions = false", block, re.MULTILINE)
