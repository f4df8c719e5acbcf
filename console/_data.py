"""`manifold data show`: what was published under a data_id, from the queues, the archive and the lake."""

import base64
import sys
from collections.abc import Iterator, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from console._output import USAGE, AsJson, fail, handle_errors, out, print_json, settings_or_fail, table
from console._startup import leave_pandas_out
from contracts.messages import sha1_hex
from contracts.names import is_id
from contracts.settings import Settings

app = typer.Typer(help="What was published under a data_id.", no_args_is_help=True)
DataIdArgument = Annotated[str, typer.Argument(metavar="DATA_ID", help="The data's id; of inline data, the SHA-1.")]
Output = Annotated[str, typer.Option("--output", metavar="FILE", help="Write the bytes to this file; - is stdout.")]


@dataclass(frozen=True, slots=True)
class Seen:
    """The bytes, and when they were published. Instants are UTC; None: known to the queues alone, which do not say."""

    payload: bytes
    first_seen_at: datetime | None
    last_seen_at: datetime | None
    times_seen: int

    def facts(self, data_id: str) -> dict[str, object]:
        """What is told of it, without the bytes."""
        return {
            "data_id": data_id,
            "sha1": sha1_hex(self.payload),
            "size_bytes": len(self.payload),
            "first_seen_at": self.first_seen_at,
            "last_seen_at": self.last_seen_at,
            "times_seen": self.times_seen,
        }


@app.callback()
def _group() -> None:
    """A group, although it has one command."""


@app.command("show")
@handle_errors
def show(data_id: DataIdArgument, as_json: AsJson = False, output: Output = "") -> None:
    """SHA-1, size, and when it was published, first, last and how often. The bytes: in the JSON (base64), or in a file."""
    if not is_id(data_id):
        fail(f"data_id {data_id!r} must be 1 to 128 printable ASCII characters without space, + # /", USAGE)
    if output == "-" and as_json:
        fail("--output - and --json both write to stdout; name a file, or leave --json out", USAGE)
    seen = find(settings_or_fail(), data_id)
    if seen is None:
        fail(f"data_id {data_id!r} is neither in the queues, nor in the archive, nor in the lake")
    if output == "-":
        sys.stdout.buffer.write(seen.payload)
        return
    if output:
        try:
            Path(output).write_bytes(seen.payload)
        except OSError as exc:
            fail(f"--output {output}: {exc.strerror}; name a file that can be written")
    if as_json:
        bytes_too = {} if output else {"data": base64.b64encode(seen.payload).decode()}
        print_json(seen.facts(data_id) | bytes_too)
        return
    out.print(table("", ("what", "value"), seen.facts(data_id).items()))
    out.print(f"the bytes are in {output}" if output else "the bytes: --output FILE, or - for stdout")


def find(settings: Settings, data_id: str) -> Seen | None:
    """What is known of `data_id` now; None if nothing is.

    Raises:
        redis.RedisError: the queues cannot be asked.
    """
    leave_pandas_out()
    from adapters.lake import open_catalog, read_data_seen, read_segments  # here: loading it takes a second
    from adapters.payloads import read_payload
    from adapters.redis import connect
    from console._recorded import BACK, flush
    from contracts import keys

    with connect(settings.redis) as redis:
        payload = cast(bytes | None, redis.get(keys.data(data_id)))
    flush(settings)  # what a recorder still holds in its journal
    catalog = open_catalog(settings)
    in_lake: dict[str, Any] | None = read_data_seen(catalog, data_id)
    recorded = sorted(_recorded(settings, data_id, read_segments(catalog, datetime.now(UTC) - BACK)))
    if payload is None:
        payload = recorded[0][2] if recorded and in_lake is None else read_payload(catalog, data_id)
    if payload is None:
        return None
    instants = [received_at for _, received_at, said in recorded if said == payload]
    times = len(instants) + (in_lake["times_seen"] if in_lake else 0)
    instants += [in_lake["first_seen_at"], in_lake["last_seen_at"]] if in_lake else []
    return Seen(payload, min(instants, default=None), max(instants, default=None), times)


def _recorded(settings: Settings, data_id: str, ingested: Set[str]) -> Iterator[tuple[int, datetime, bytes]]:
    """(seq, received at, bytes) of every message that published it and is in no segment of `ingested`: data, or inline."""
    from console._recorded import not_ingested
    from contracts.envelope import Stream, inline_encoding
    from contracts.messages import Trigger, parse_trigger
    from contracts.topics import data_topic

    for envelope in not_ingested(settings, ingested, Stream.DATA, topic=data_topic(data_id)):
        yield envelope.seq, envelope.received_at, envelope.payload
    if len(data_id) != len(sha1_hex(b"")):
        return  # inline data has no other name
    for envelope in not_ingested(settings, ingested, Stream.TRIGGER, holding='"data"'):
        inline = inline_encoding(envelope.headers, settings.inline_encoding)
        limits = {"max_ids": settings.max_ids, "max_data_bytes": settings.max_data_bytes}
        trigger = parse_trigger(envelope.payload, **limits, inline=inline)
        if isinstance(trigger, Trigger) and trigger.data is not None and trigger.data_id == data_id:
            yield envelope.seq, envelope.received_at, trigger.data
