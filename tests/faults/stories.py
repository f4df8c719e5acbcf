"""A broken promise in readable form: one vehicle's history around the entry concerned."""

from collections.abc import Iterator, Sequence

from tests.faults.history import Line, about
from tests.faults.verdict import Verdict

AROUND = 14  # lines shown before the first and after the last line of the entry
EXAMPLES = 3


def stories(lines: Sequence[Line], verdict: Verdict) -> Iterator[str]:
    """For each broken promise: its name, the number of entries, and the story of the first; `>` marks that entry's lines."""
    for word, entries in verdict.broken.items():
        yield f"{word}: {len(entries)}, for example {', '.join(f'{vin} seq {seq}' for vin, seq in entries[:EXAMPLES])}"
        vin, seq = entries[0]
        own = list(about(lines, vin))
        requests = {line.request for line in own if line.seq == seq and line.request}
        places = [n for n, line in enumerate(own) if line.seq == seq or line.request in requests]
        first, last = max(0, min(places, default=0) - AROUND), max(places, default=0) + AROUND
        yield f"  {vin}:"
        for place in range(first, min(last, len(own))):
            yield f"  {'>' if place in places else ' '} {own[place]}"
