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
RESULTS = pa.schema(
    [*_LISTS, pa.field("anomaly_types", pa.string()), pa.field("rules", pa.int32()), pa.field("problem", pa.string())]
)
PROCESSED = pa.schema([*SIGNALS, *RESULTS])


@dataclass(frozen=True, slots=True)
class Processing:
    """A parser that opens and processes payloads. It yields one row per message, with the columns `SIGNALS` and `RESULTS`.

    With both in one row, a message is read only once for the raw signal and its results.
    """

    keys: DayKeys | None  # None if there is no usable key ring
    bounds: Bounds

    @classmethod
    def of(cls, settings: Settings) -> "Processing":
        """Build the parser with the keys and bounds of the settings.

        Without a usable key ring, the parser leaves payloads unread, and each row names this problem. It does not fail, because
        the other streams of the run need no keys.
        """
        try:
            keys = DayKeys.of(settings)
        except SettingsError:
            keys = None
        return cls(keys, read_bounds(settings.signals_bounds))

    def __call__(self, messages: pa.Table, limits: Limits) -> Iterator[pa.RecordBatch]:
        """Yield the rows of these messages. The results of a refused message are null.

        Raises:
            OSError: the storage of keys failed.
        """
        for part in batches(messages):
            parsed = raw_records(part, limits)
            accepted_rows = [row for row, record in enumerate(parsed) if isinstance(record, RawRecord)]
            sealed = [record.sealed for record in parsed if isinstance(record, RawRecord)]
            seqs = part["seq"].take(pa.array(accepted_rows, pa.int64())).to_pylist()
            results = self.results_of(seqs, sealed)
            if len(accepted_rows) < len(parsed):
                # One row per message: `take` turns an index of None into a row of nulls.
                result_of_message: list[int | None] = [None] * len(parsed)
                for result_row, message_row in enumerate(accepted_rows):
                    result_of_message[message_row] = result_row
                results = results.take(pa.array(result_of_message, pa.int64()))
            yield pa.RecordBatch.from_arrays([*signal_rows(part, parsed).columns, *results.columns], schema=PROCESSED)

    def results_of(self, seqs: Sequence[int], sealed: Sequence[bytes]) -> pa.RecordBatch:
        """Open and process sealed payloads; return a row with the columns `RESULTS` for each.

        `seqs` are the seqs of the messages with these payloads, in the same order. A row has readings, anomalies and the version
        of the rules. If a payload cannot be opened, its row has the problem instead of readings and anomalies.

        Raises:
            OSError: the storage of keys failed.
        """
        processed: list[ProcessedData] = []
        problems: list[str | None] = []
        for seq, payload in zip(seqs, sealed, strict=True):
            data, problem = self._process(seq, payload)
            processed.append(data)
            problems.append(problem)
        columns = {
            "readings": lists_of([data.readings for data in processed], Reading, RESULTS.field("readings").type),
            "anomalies": lists_of([data.anomalies for data in processed], Anomaly, RESULTS.field("anomalies").type),
            "anomaly_types": [",".join(sorted({anomaly.type for anomaly in data.anomalies})) for data in processed],
            "rules": [RULES] * len(processed),
            "problem": problems,
        }
        return batch(columns, RESULTS, len(processed))

    def _process(self, seq: int, sealed: bytes) -> tuple[ProcessedData, str | None]:
        """Open and process one payload; return the processed data and None, or no data and the problem."""
        if self.keys is None:
            return NO_DATA, "the key ring cannot be read"
        try:
            return process(self.keys.open(sealed, seq=seq), self.bounds), None
        except (KeyIsGone, Broken) as exc:
            return NO_DATA, str(exc)
