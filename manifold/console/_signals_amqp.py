"""`manifold signals send` and `manifold signals dlq`: the console as a gateway, and as the operator of dead letters."""

import asyncio
import base64
import json
import os
import sys
import uuid
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from manifold.console._output import USAGE, AsJson, fail, handle_errors, out, print_json, settings_or_fail, table
from manifold.contracts.errors import Permanent, Retryable, message_of
from manifold.contracts.signals import topology
from manifold.contracts.signals.codes import Code
from manifold.contracts.signals.messages import DEVICE_ID
from manifold.contracts.signals.rights import GATEWAY
from manifold.contracts.signals.signing import signed_headers
from manifold.messaging.amqp import connection_url, hmac_secrets, shown_url
from manifold.settings import Settings

dlq_app = typer.Typer(help="Dead letters: messages that the door has refused, the oldest first.", no_args_is_help=True)
Device = Annotated[str, typer.Argument(metavar="DEVICE", help="The device's id.")]
LetterCount = Annotated[int, typer.Option("--count", min=1, max=10_000, help="So many, the oldest first.")]
T = TypeVar("T")
MAX_SHOWN_IDS = 100  # correlation ids in the JSON of `send`
# Replayed only if the operator names the code, because they may be replay attacks.
NOT_VOUCHED_FOR = (Code.REPLAY_ERROR, Code.IDEMPOTENCY_CONFLICT)


@handle_errors
def send(
    device_id: Device,
    data_from: Annotated[str, typer.Option("--data", metavar="FILE", help="File with the payload; - is stdin.")],
    count: Annotated[int, typer.Option("--count", min=1, max=1_000_000, help="So many messages, each a signal of its own.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Publish signals of a device, signed, and wait until RabbitMQ has them."""
    if not DEVICE_ID.fullmatch(device_id):
        fail(f"device id {device_id!r} must be 1 to 100 of the characters A-Z a-z 0-9 _ -", USAGE)
    settings = settings_or_fail()
    payload = _read_payload(data_from)
    if not payload or len(base64.b64encode(payload)) > settings.signals_max_payload:
        max_bytes = settings.signals_max_payload * 3 // 4  # the setting bounds the Base64 text: 4 characters per 3 bytes
        fail(f"{data_from} has {len(payload)} bytes: a payload has 1 to {max_bytes}", USAGE)
    correlation_ids = _run(settings, _send(settings, device_id, payload, count))
    sent = len(correlation_ids)
    if as_json:
        print_json({"device_id": device_id, "sent": sent, "correlation_ids": correlation_ids[:MAX_SHOWN_IDS]})
    else:
        out.print(f"{sent} published to {topology.RAW}, correlation id {correlation_ids[-1]}")


@dlq_app.command("ls")
@handle_errors
def ls(count: LetterCount = 100, as_json: AsJson = False) -> None:
    """List dead letters, and why each was refused."""
    settings = settings_or_fail()
    letters = _run(settings, _read_dead_letters(settings, count))
    if as_json:
        print_json({"dead_letters": letters})
        return
    rows = [
        (
            letter["place"],
            letter["code"],
            letter["device_id"] or "–",
            letter["correlation_id"] or "–",
            letter["error"].get("message", "not seen by a door"),
            letter["error"].get("timestamp", ""),
            letter["bytes"],
        )
        for letter in letters
    ]
    out.print(table(f"{len(rows)} dead letters", ("place", "code", "device", "correlation id", "why", "at", "bytes"), rows))


@dlq_app.command("show")
@handle_errors
def show(place: Annotated[int, typer.Argument(min=1, help="Its place, as `ls` counts.")]) -> None:
    """Show one dead letter: error, headers, and the body as it came."""
    settings = settings_or_fail()
    letters = _run(settings, _read_dead_letters(settings, place, with_body=True))
    if len(letters) < place:
        fail(f"there are {len(letters)} dead letters", USAGE)
    print_json(letters[-1])  # the last of the `place` oldest letters


@dlq_app.command("replay")
@handle_errors
def replay(
    count: LetterCount = 100,
    code: Annotated[str, typer.Option(help="Only those with this code.")] = "",
    vouch: Annotated[
        bool,
        typer.Option("--vouch", help="Also those that are only too old: sign them anew, on your word that they are not replays."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what the door would make of each now, and leave them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send dead letters to their queue again. What the door would refuse again stays; what is only too old needs your word."""
    settings = settings_or_fail()
    letters = _run(settings, _replay(settings, count, code, vouch=vouch, dry_run=dry_run))
    if as_json:
        print_json({"dead_letters": letters})
        return
    titles = ("place", "code", "the door would say", "can be vouched for", "replayed")
    rows = []
    for letter in letters:
        vouchable = "yes" if letter["vouchable"] else "no"
        replayed = "yes" if letter["replayed"] else "no"
        rows.append((letter["place"], letter["code"], letter["would_be"], vouchable, replayed))
    out.print(table("", titles, rows))


def erase_letters(settings: Settings, device_id: str) -> int:
    """Delete a device's dead letters; return their number.

    Raises:
        Retryable: RabbitMQ is unavailable.
        Permanent: RabbitMQ refuses the login.
    """
    try:
        return _run(settings, _erase_letters(settings, device_id))
    except Retryable as exc:
        raise Retryable(f"{exc}; or leave dead letters, which expire after a week: --leave-dead-letters") from exc


async def _erase_letters(settings: Settings, device_id: str) -> int:
    """Delete the dead letters that state the device's id, or name it in a header or in their body; return their number."""
    from manifold.contracts.seq import MAX_SEQ
    from manifold.signals.dead_letters import open_dead_letters
    from pipelines.erasure.names import ErasedVehicle

    device = ErasedVehicle(device_id, MAX_SEQ)

    def names_device(content: str | bytes) -> bool:
        # Called with each header and the body of a letter that does not state the device's id in its fields. A short id is not
        # searched for, because it may occur there by chance.
        return device.is_searched_in_opaque and device.is_named_in(content)

    async with open_dead_letters(settings) as letters:
        return await letters.erase(device_id, names_device)


async def _send(settings: Settings, device_id: str, payload: bytes, count: int) -> list[str]:
    """Publish `count` signals of a device; return their correlation ids."""
    import aio_pika  # imported here, so that --help is fast

    secrets = hmac_secrets(settings)
    correlation_ids = []
    encoded_payload = base64.b64encode(payload).decode()
    connection = await aio_pika.connect(connection_url(settings, as_user=GATEWAY), timeout=settings.signals_connect_ms / 1000)
    async with connection, connection.channel(publisher_confirms=True, on_return_raises=True) as channel:
        exchange = await channel.get_exchange(topology.EXCHANGE, ensure=False)
        for _ in range(count):
            now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
            fields = {"deviceId": device_id, "capturedAt": now, "payload": encoded_payload, "schemaVersion": "v1"}
            body = json.dumps(fields).encode()
            correlation_id = str(uuid.uuid4())
            headers: dict[str, Any] = {"x-correlation-id": correlation_id, "x-schema-version": "v1", "x-timestamp": now}
            if secrets:
                headers |= signed_headers(body, secrets[0], device_id=device_id, nonce=os.urandom(16).hex(), timestamp=now)
            mode = aio_pika.DeliveryMode.PERSISTENT
            message = aio_pika.Message(body, headers=headers, content_type="application/json", delivery_mode=mode)
            await exchange.publish(message, topology.RAW, mandatory=True)
            correlation_ids.append(correlation_id)
    return correlation_ids


async def _read_dead_letters(settings: Settings, count: int, *, with_body: bool = False) -> list[dict[str, Any]]:
    """Return the `count` oldest dead letters as JSON values; they stay in their queue."""
    from manifold.signals.dead_letters import open_dead_letters

    rows = []
    async with open_dead_letters(settings) as letters:
        for letter in await letters.take_oldest(count):
            row = letter.to_json()
            if with_body:
                row["body"] = letter.body.decode("utf-8", "replace")
            rows.append(row)
    return rows


async def _replay(settings: Settings, count: int, code: str, *, vouch: bool, dry_run: bool) -> list[dict[str, Any]]:
    """Replay those of the `count` oldest dead letters that the door would accept now, and return a row for each letter.

    If `code` is not empty, letters with another code are left out. With `vouch`, letters that the door would refuse only
    because they are too old are replayed as well; but if their code is in `NOT_VOUCHED_FOR`, only if `code` names it. With
    `dry_run`, no letter is replayed.
    """
    from manifold.signals.dead_letters import ACCEPTED, open_dead_letters

    rows = []
    async with open_dead_letters(settings) as letters:
        for letter in await letters.take_oldest(count):
            if code and letter.code != code:
                continue
            verdict = letters.verdict_now(letter)
            is_only_old = letters.is_only_old(letter)
            may_vouch = letter.code == code or letter.code not in NOT_VOUCHED_FOR
            is_vouched_for = vouch and is_only_old and may_vouch
            is_replayed = not dry_run and (verdict == ACCEPTED or is_vouched_for)
            if is_replayed:
                await letters.replay(letter)
            row = {"place": letter.place, "code": letter.code, "would_be": verdict, "vouchable": is_only_old}
            rows.append(row | {"replayed": is_replayed})
    return rows


def _run(settings: Settings, work: Coroutine[Any, Any, T]) -> T:
    """Run `work` and return its result.

    Raises:
        Retryable: RabbitMQ is unavailable, or lacks the queue or exchange.
        Permanent: RabbitMQ refuses the login.
    """
    from aio_pika.exceptions import AMQPError, ProbableAuthenticationError

    _, _, address = shown_url(settings).rpartition("@")  # without the user
    try:
        return asyncio.run(work)
    except ProbableAuthenticationError as exc:
        raise Permanent(
            f"RabbitMQ at {address} refuses user or password; see MANIFOLD_SIGNALS_AMQP_URL and <home>/secrets"
        ) from exc
    except (AMQPError, OSError, TimeoutError) as exc:
        raise Retryable(f"RabbitMQ at {address}: {message_of(exc)}; see that it runs: make up") from exc


def _read_payload(data_from: str) -> bytes:
    """Read a file, or stdin for "-"; exit with an error if the file cannot be read."""
    if data_from == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(data_from).read_bytes()
    except OSError as exc:
        fail(f"cannot read --data {data_from} ({exc.strerror}); name a file that exists, or - for stdin", USAGE)
