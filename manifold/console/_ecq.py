"""`manifold ecq`: exclusive compacted queues: show one, write to it, rewind it, list the longest."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from redis.asyncio import Redis

from manifold.console._output import FAILED, USAGE, AsJson, fail, handle_errors, out, print_json, settings_or_fail, table
from manifold.console._queue_stats import Fresh, HowMany, TopQueues
from manifold.contracts import keys
from manifold.contracts.ecq import parse_ecq, refused_client
from manifold.contracts.messages import Receipt, ReceiptStatus, Refused
from manifold.contracts.seq import datetime_of
from manifold.contracts.topics import ecq_rewind_topic, ecq_write_topic
from manifold.settings import Settings

app = typer.Typer(help="Use exclusive compacted queues: the newest message of each key, for one client.", no_args_is_help=True)
ClientId = Annotated[str, typer.Argument(metavar="CLIENTID", help="The client whose queue it is.")]


@app.command()
@handle_errors
def show(client_id: ClientId, as_json: AsJson = False) -> None:
    """The newest message of each key, oldest first, with its state, and the acknowledged seq."""
    settings = _settings_for(client_id)
    from manifold.console._history import history_of

    with history_of(settings) as history:
        queue = history.compacted_queue(client_id)
    if as_json:
        print_json(queue.to_json())
        return
    if not queue.entries:
        out.print(f"{client_id}: nothing is live")
    else:
        has_ended_entries = any(entry.ended_at for entry in queue.entries)
        columns = ["seq", "key", "state", "accepted at", "bytes"]
        if has_ended_entries:
            columns += ["ended at", "why"]
        rows = []
        for entry in queue.entries:
            row: list[Any] = [entry.seq, entry.key, entry.state, entry.ts, entry.size_bytes]
            if has_ended_entries:
                row += [entry.ended_at, entry.reason]
            rows.append(row)
        out.print(table(f"{client_id}, {len(rows)} keys", columns, rows))
    if queue.last_seq is not None:
        position = [("last message", queue.last_seq), ("acknowledged up to", queue.acked_seq), ("at", queue.acked_at)]
        out.print(table("", ("position", "value"), position))


@app.command()
@handle_errors
def write(
    client_id: ClientId,
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="The key of which this is the newest message; may have several levels.")
    ],
    data_from: Annotated[str, typer.Option("--data", metavar="FILE", help="File with the payload; - is stdin.")],
    as_json: AsJson = False,
) -> None:
    """Publish the newest message of a key; wait for the recorder's receipt."""
    settings = _settings_for(client_id)
    topic = ecq_write_topic(client_id, key)
    payload = _read_payload(data_from, settings.max_data_bytes)
    parsed = parse_ecq(topic, payload, max_data_bytes=settings.max_data_bytes)
    if isinstance(parsed, Refused):
        fail(parsed.reason, USAGE)
    receipt = asyncio.run(_publish(settings, topic, payload))
    _print_receipt(receipt, as_json, client_id=client_id, key=key)


@app.command()
@handle_errors
def rewind(
    client_id: ClientId,
    to: Annotated[str, typer.Option("--to", metavar="earliest|SEQ|TIME", help="The first message that is sent again.")],
    as_json: AsJson = False,
) -> None:
    """Rewind a queue to a message and wait for the recorder's receipt. Only live messages are sent again."""
    settings = _settings_for(client_id)
    topic = ecq_rewind_topic(client_id)
    payload = to.strip().encode(errors="replace")
    parsed = parse_ecq(topic, payload, max_data_bytes=settings.max_data_bytes)
    if isinstance(parsed, Refused):
        fail(f"--to: {parsed.reason}", USAGE)
    receipt = asyncio.run(_publish(settings, topic, payload))
    _print_receipt(receipt, as_json, client_id=client_id, to=to)


@app.command()
@handle_errors
def top(count: HowMany = 10, fresh: Fresh = False, as_json: AsJson = False) -> None:
    """The clients with the most and the oldest pending messages: named by the last queue statistics, with their state now."""
    queues = TopQueues(
        named=lambda stats: (stats.ecq_longest, stats.ecq_oldest),
        read=_read_states,
        length="pending",
        title="most pending",
        columns=("client", "pending", "live", "oldest accepted at"),
    )
    queues.show(count, fresh=fresh, as_json=as_json)


async def _read_states(redis: Redis, client_ids: list[str]) -> list[dict[str, Any]]:
    """Return the current state of these queues; queues without pending messages are omitted."""
    pipe = redis.pipeline(transaction=False)
    for client_id in client_ids:
        pending, _, _, live, *_ = keys.ecq_keys(client_id)
        pipe.zcard(pending)
        pipe.hlen(live)
        pipe.zrange(pending, 0, 0)
    results = await pipe.execute() if client_ids else []
    pending_counts, live_counts, oldest_entries = results[::3], results[1::3], results[2::3]  # three commands per client
    return [
        {"client_id": client_id, "pending": pending, "live": live, "oldest_at": datetime_of(int(oldest[0]))}
        for client_id, pending, live, oldest in zip(client_ids, pending_counts, live_counts, oldest_entries, strict=True)
        if oldest
    ]


async def _publish(settings: Settings, topic: str, payload: bytes) -> Receipt:
    from manifold.messaging.publisher import Publisher

    async with Publisher(settings) as publisher:
        return await publisher.publish(topic, payload)


def _settings_for(client_id: str) -> Settings:
    """Return the settings; exit with an error if the client id cannot have a queue."""
    refused = refused_client(client_id)
    if refused is not None:
        fail(refused.reason, USAGE)
    return settings_or_fail()


def _print_receipt(receipt: Receipt, as_json: bool, **arguments: Any) -> None:
    """Print the command's arguments and the receipt of its message; exit with status 1 if the message was refused."""
    if as_json:
        print_json({**arguments, "seq": receipt.seq, "status": receipt.status.value, "reason": receipt.reason})
    else:
        columns = (*(name.replace("_", " ") for name in arguments), "seq", "status", "why")
        out.print(table("", columns, [(*arguments.values(), receipt.seq, receipt.status.value, receipt.reason)]))
    if receipt.status is ReceiptStatus.REFUSED:
        raise typer.Exit(FAILED)


def _read_payload(file: str, max_bytes: int) -> bytes:
    """Read a file, or stdin for "-"; exit with an error if the file cannot be read."""
    try:
        if file == "-":
            return sys.stdin.buffer.read(max_bytes + 1)  # one byte too many is enough for the payload to be refused as too long
        return Path(file).read_bytes()
    except OSError as exc:
        fail(f"cannot read {file} ({exc.strerror}); name a file that exists, or - for stdin", USAGE)
