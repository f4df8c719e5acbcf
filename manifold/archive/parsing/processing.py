"""Processes the payloads of X-ray signals: decrypts each one and applies the processing rules."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from manifold.archive.parsing.columns import batch, lists_of
from manifold.archive.parsing.common import Limits, batches
from manifold.archive.parsing.signals import SIGNALS, raw_records, signal_rows
from manifold.contracts.errors import SettingsError
from manifold.contracts.signals.bounds import Bounds, read_bounds
from manifold.contracts.signals.processing import NO_DATA, RULES, Anomaly, ProcessedData, Reading, process
from manifold.contracts.signals.records import RawRecord
from manifold.contracts.tables import XRAY_PROCESSED
from manifold.lake.day_keys import DayKeys
from manifold.lake.key_ring import KeyIsGone
from manifold.lake.sealing import Broken
from manifold.settings import Settings

_LISTS = [XRAY_PROCESSED.arrow_schema.field(name).remove_metadata() for name in ("readings", "anomalies")]
MADE = pa.schema(
    [*_LISTS, pa.field("anomaly_types", pa.string()), pa.field("rules", pa.int32()), pa.field("problem", pa.string())]
)
PROCESSED = pa.schema([*SIGNALS, *MADE])


@dataclass(frozen=True, slots=True)
class Processing:
    """A parser that opens and processes payloads: one row per message, with the columns of `signals` and the results.

    Thus each message is read only once for the raw signal and its results.
    """

    keys: DayKeys | None  # None: no usable key ring
    bounds: Bounds

    @classmethod
    def of(cls, settings: Settings) -> "Processing":
        """Build the parser with the keys and bounds of the settings.

        Without a usable key ring, payloads stay unread and the rows say so: other streams of a run need no keys.
        """
        try:
            keys = DayKeys.of(settings)
        except SettingsError:
            keys = None
        return cls(keys, read_bounds(settings.signals_bounds))

    def __call__(self, messages: pa.Table, limits: Limits) -> Iterator[pa.RecordBatch]:
        """Yield the rows.

        Raises:
            OSError: the storage of keys failed.
        """
        for part in batches(messages):
            parsed = raw_records(part, limits)
            places = [place for place, one in enumerate(parsed) if isinstance(one, RawRecord)]
            sealed = [one.sealed for one in parsed if isinstance(one, RawRecord)]
            made = self.made_of(part["seq"].take(pa.array(places, pa.int64())).to_pylist(), sealed)
            if len(places) < len(parsed):
                of_each: list[int | None] = [None] * len(parsed)
                for row, place in enumerate(places):
                    of_each[place] = row
                made = made.take(pa.array(of_each, pa.int64()))
            yield pa.RecordBatch.from_arrays([*signal_rows(part, parsed).columns, *made.columns], schema=PROCESSED)

    def made_of(self, seqs: Sequence[int], sealed: Sequence[bytes]) -> pa.RecordBatch:
        """Build a row (`MADE`) for each sealed payload: readings, anomalies and rules; or the problem.

        Raises:
            OSError: the storage of keys failed.
        """
        made = [self._opened(seq, one) for seq, one in zip(seqs, sealed, strict=True)]
        data, readings, anomalies = [one for one, _ in made], MADE.field("readings").type, MADE.field("anomalies").type
        columns = {
            "readings": lists_of([one.readings for one in data], Reading, readings),
            "anomalies": lists_of([one.anomalies for one in data], Anomaly, anomalies),
            "anomaly_types": [",".join(sorted({anomaly.type for anomaly in one.anomalies})) for one in data],
            "rules": [RULES] * len(made),
            "problem": [problem for _, problem in made],
        }
        return batch(columns, MADE, len(made))

    def _opened(self, seq: int, sealed: bytes) -> tuple[ProcessedData, str | None]:
        """Return the processed data and the problem, or None."""
        if self.keys is None:
            return NO_DATA, "the key ring cannot be read"
        try:
            return process(self.keys.open(sealed, seq=seq), self.bounds), None
        except (KeyIsGone, Broken) as exc:
            return NO_DATA, str(exc)
