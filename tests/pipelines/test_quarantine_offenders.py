"""Which messages are quarantined when a run breaks rules, and when it is held back. No Spark: writing and audits are replaced."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from expectations import Audit, Finding, Severity
from manifold.contracts.envelope import Envelope, Stream, segment_path, to_arrow
from manifold.contracts.messages import sha1_hex
from manifold.contracts.tables import DATA, IDS, META, OUTCOMES, SEGMENTS, Table
from manifold.lake.catalog import open_catalog
from manifold.settings import Settings
from pipelines.ingest import backlog, quarantine_offenders
from pipelines.ingest.audit import AuditFailed
from pipelines.ingest.branches import branch_of, open_run
from pipelines.ingest.planning import Offenders
from pipelines.ingest.reading import refuse_offenders
from pipelines.ingest.run import Ingested, Run
from tests.pipelines.makers import at, data, inline, outcome, seq_at, trigger
from tests.pipelines.plain import without_spark
from tests.support.lake_rows import new_lake

RUN = "run+00:00"


def failed(keys: Mapping[str, list[Any]]) -> Audit:
    findings = [
        Finding(table, "is_not_bad", Severity.ERROR, "says", "the reason", 1, 1, (), tuple(map(tuple, found)))
        for table, found in keys.items()
    ]
    return Audit(RUN, False, tuple(findings), (), {}, "report")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings with a run on its branch that ingests three files."""
    settings = Settings(home=tmp_path)
    catalog = new_lake(settings)
    files: dict[Stream, list[Envelope]] = {
        Stream.TRIGGER: [trigger(1, ["V1"]), inline(2, ["V2"], b"x"), trigger(3, ["V1", 7])],
        Stream.DATA: [data(4, "d1", b"one"), data(5, "d2", b"two"), data(6, "d2", b"two")],
        Stream.OUTCOME: [outcome(7, "V1", 1), outcome(8, "V2", 2), outcome(9, "V1", 1)],
    }
    rows = []
    for stream, messages in files.items():
        path = segment_path(stream, messages[0].seq, 0)
        file = settings.home / "archive" / path
        file.parent.mkdir(parents=True)
        pq.write_table(to_arrow(messages), file)
        rows.append({"path": path, "stream": stream.value, "messages": 3, "run_id": RUN, "ingested_at": at(10)})
    ledger = catalog.load_table(SEGMENTS.identifier)
    main = ledger.current_snapshot()
    assert main is not None
    open_run(catalog, RUN, main.snapshot_id, at(10))
    ledger.refresh().append(pa.Table.from_pylist(rows, schema=SEGMENTS.arrow_schema), branch=branch_of(RUN))
    return settings


def a_run(settings: Settings) -> Run:
    return without_spark(open_catalog(settings), settings, RUN, at(10))


@pytest.mark.parametrize(
    ("table", "key", "behind"),
    [
        pytest.param(IDS, (seq_at(1),), [1], id="an entry has its trigger's seq"),
        pytest.param(DATA, (seq_at(4),), [4], id="data has its message's seq"),
        pytest.param(META, ("d2",), [5, 6], id="meta: every message of the data"),
        pytest.param(META, ("11f6ad8ec52a2984abaafd7c3b516503785c2072",), [2], id="meta: the trigger that contained it"),
        pytest.param(OUTCOMES, ("V1", seq_at(1)), [7, 9], id="an outcome: every message about the entry"),
    ],
)
def test_the_messages_behind_a_row_are_found(settings: Settings, table: Table, key: tuple[Any, ...], behind: list[int]) -> None:
    found = quarantine_offenders.offenders_of(a_run(settings), failed({table.name: [key]}))

    why = f"set aside by the audit: {table.name}: is_not_bad (the reason)"
    assert found == Offenders({seq_at(ms): why for ms in behind})


def test_a_trigger_with_inline_data_as_text_is_found(settings: Settings) -> None:
    """Without a recorder's header, the setting says how inline data is encoded."""
    as_text = settings.model_copy(update={"inline_encoding": "text"})
    data_id = sha1_hex(base64.b64encode(b"x"))

    found = quarantine_offenders.offenders_of(a_run(as_text), failed({META.name: [(data_id,)]}))

    assert list(found.messages) == [seq_at(2)]


def test_a_file_whose_own_row_is_bad_is_refused_as_a_whole(settings: Settings) -> None:
    found = quarantine_offenders.offenders_of(a_run(settings), failed({SEGMENTS.name: [("data/x.parquet",)]}))

    assert found == Offenders(files={"data/x.parquet": "set aside by the audit: ingested_segments: is_not_bad (the reason)"})


def test_a_quarantined_message_is_refused_regardless_of_its_content() -> None:
    messages = to_arrow([trigger(1, ["V1"]), trigger(2, ["V2"]), trigger(3, ["V3"], refused_because="said the door")])

    reasons = refuse_offenders(messages, {seq_at(2): "because"})["refused_because"].to_pylist()

    assert reasons == [None, "because", "said the door"]
    assert refuse_offenders(messages, {}) is messages


class Lake:
    """A replacement of writing and auditing: each attempt breaks the next item of `rounds`, until none is left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, messages: int, *rounds: Mapping[str, list[Any]]) -> None:
        self.messages, self.rounds = messages, list(rounds)
        self.asides: list[Offenders] = []
        self.instants: list[Any] = []
        monkeypatch.setattr(backlog, "ingest", self.ingest)
        monkeypatch.setattr(backlog, "audit_run", self.audit)

    def ingest(self, run: Run, aside: Offenders) -> Ingested:
        self.asides.append(aside)
        self.instants.append(run.now)
        return Ingested(RUN, read={"trigger": self.messages})

    def audit(self, run: Run) -> Audit:
        assert run.now == self.instants[-1]
        if self.rounds:
            raise AuditFailed(failed(self.rounds.pop(0)))
        return Audit(RUN, True, (), (), {}, "report")

    def run(self, settings: Settings) -> tuple[Ingested, Audit | None]:
        return backlog.ingest_and_audit(a_run(settings))


def test_the_run_is_rewritten_without_offenders_until_it_passes(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lake = Lake(monkeypatch, 3, {IDS.name: [(1,)]}, {DATA.name: [(2,)]})

    _, audit = lake.run(settings)

    assert audit is not None
    assert audit.passed
    assert [sorted(each.messages) for each in lake.asides] == [[], [1], [1, 2]]
    assert len(set(lake.instants)) == 3, "otherwise the rows of quality_results would not distinguish the attempts"
    assert f"run {RUN} quarantined 2 messages or files" in caplog.text


@pytest.mark.parametrize(
    ("messages", "offending", "held_back"), [(10, 10, False), (10, 11, True), (1000, 100, False), (1000, 101, True)]
)
def test_a_run_with_too_many_offenders_is_held_back(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, messages: int, offending: int, held_back: bool
) -> None:
    lake = Lake(monkeypatch, messages, {IDS.name: [(seq,) for seq in range(offending)]})

    if held_back:
        with pytest.raises(AuditFailed):
            lake.run(settings)
    else:
        lake.run(settings)
    assert len(lake.asides) == 2 - held_back


def test_an_ineffective_rewrite_is_not_repeated(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(monkeypatch, 1000, *[{IDS.name: [(1,)]}] * 5)
    with pytest.raises(AuditFailed):
        lake.run(settings)
    assert len(lake.asides) == 2

    lake = Lake(monkeypatch, 1000, *[{IDS.name: [(seq,)]} for seq in range(9)])
    with pytest.raises(AuditFailed):
        lake.run(settings)
    assert len(lake.asides) == backlog.MAX_AUDIT_ROUNDS

    lake = Lake(monkeypatch, 1000, {IDS.name: []})
    with pytest.raises(AuditFailed):
        lake.run(settings)
    assert len(lake.asides) == 1, "no offender can be named"
