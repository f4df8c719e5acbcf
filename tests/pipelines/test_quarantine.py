"""Quarantine operations: list, replay under the same seq after a fix, or drop; each once."""

import json
import tracemalloc
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from typer.testing import CliRunner, Result

from manifold.archive.quarantine import drop, replay
from manifold.archive.refusals import Cursor, RefusalFilter, page, refusal, seqs
from manifold.console._app import make_app
from manifold.contracts.envelope import Envelope, Stream
from manifold.contracts.errors import Permanent
from manifold.contracts.tables import ACTIONS, IDS, META, QUARANTINE
from manifold.lake.catalog import ensure_tables
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import at, data, seq_at, trigger
from tests.support.lake_rows import append_payloads
from tests.support.memory import counted_arrow_memory

LATER = at(3_600_000)


def refuse(spark_lake: SparkLake, envelope: Envelope, reason: str) -> int:
    """Put a message into quarantine as ingest does."""
    ensure_tables(spark_lake.catalog)
    row = {"seq": envelope.seq, "received_at": envelope.received_at, "stream": envelope.stream.value, "topic": envelope.topic}
    spark_lake.append(QUARANTINE, [row | {"reason": reason, "payload": envelope.payload}])
    return envelope.seq


def test_a_refused_trigger_is_replayed_under_its_seq_after_the_limit_is_raised(spark_lake: SparkLake) -> None:
    spark_lake.settings = spark_lake.settings.model_copy(update={"max_ids": 1})
    spark_lake.write(Stream.TRIGGER, [trigger(1, ["V1"]), trigger(2, ["V1", "V2"]), trigger(3, ["V2"])])
    spark_lake.ingest("first")
    (refused,) = page(spark_lake.catalog, RefusalFilter(), limit=9).refusals
    with pytest.raises(Permanent, match=r"(?s)refused again.*max_ids=1"):
        replay(spark_lake.catalog, spark_lake.settings, refused.seq, now=LATER)
    spark_lake.settings = spark_lake.settings.model_copy(update={"max_ids": 2})
    done = replay(spark_lake.catalog, spark_lake.settings, refused.seq, note="limit raised", now=LATER)
    assert done.segment.startswith("trigger/dt=2026-03-01/hour=13/")
    first = spark_lake.file(done.segment)
    again = first.parent.with_name("hour=14") / first.name  # as if replayed twice
    again.parent.mkdir()
    again.write_bytes(first.read_bytes())
    assert spark_lake.ingest("second").skipped == 1
    assert spark_lake.rows(IDS, "vin", "seq") == [
        ("V1", seq_at(1)),
        ("V1", seq_at(2)),
        ("V2", seq_at(2)),
        ("V2", seq_at(3)),
    ]
    assert page(spark_lake.catalog, RefusalFilter(), limit=9).refusals == []
    assert refusal(spark_lake.catalog, refused.seq).note == "limit raised"
    with pytest.raises(Permanent, match="was replayed"):
        replay(spark_lake.catalog, spark_lake.settings, refused.seq, now=LATER)


def test_a_replay_may_correct_the_payload(spark_lake: SparkLake) -> None:
    seq = refuse(spark_lake, trigger(2, ["V 1"]), "ids[0] has a space")
    corrected = trigger(2, ["V1"]).payload
    with pytest.raises(Permanent, match="--payload"):
        replay(spark_lake.catalog, spark_lake.settings, seq, now=LATER)
    replay(spark_lake.catalog, spark_lake.settings, seq, payload=corrected, now=LATER)
    spark_lake.ingest("again")
    assert spark_lake.rows(IDS, "vin", "seq") == [("V1", seq)]


def test_data_known_to_the_lake_with_other_bytes_is_not_replayed(spark_lake: SparkLake) -> None:
    seq = refuse(spark_lake, data(2, "d1", b"other"), "too large then")
    append_payloads(spark_lake.catalog, {"d1": b"one"}, at=at(0))
    with pytest.raises(Permanent, match="known with other bytes"):
        replay(spark_lake.catalog, spark_lake.settings, seq, now=LATER)
    assert spark_lake.rows(META, "times_seen") == [1]


def test_a_trigger_past_its_retention_is_replayed_for_the_record_only(spark_lake: SparkLake) -> None:
    seq = refuse(spark_lake, trigger(2, ["V1"]), "a limit")
    assert not replay(spark_lake.catalog, spark_lake.settings, seq, now=at(0) + timedelta(days=40)).will_be_sent


def test_a_file_cannot_be_replayed_and_can_be_dropped(spark_lake: SparkLake) -> None:
    spark_lake.file("trigger/x.jsonl").parent.mkdir(parents=True)
    spark_lake.file("trigger/x.jsonl").write_bytes(b"nonsense")
    spark_lake.ingest()
    (refused,) = page(spark_lake.catalog, RefusalFilter(), limit=9).refusals
    with pytest.raises(Permanent, match="another path"):
        replay(spark_lake.catalog, spark_lake.settings, refused.seq, now=LATER)
    assert drop(spark_lake.catalog, [refused.seq, refused.seq], note="", now=LATER) == [refused.seq]
    assert drop(spark_lake.catalog, [refused.seq], note="", now=LATER) == []
    assert spark_lake.rows(ACTIONS, "seq", "action") == [(refused.seq, "dropped")]


@pytest.fixture
def manifold(spark_lake: SparkLake, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("MANIFOLD_HOME", str(spark_lake.settings.home))
    return lambda *arguments: CliRunner().invoke(make_app("quarantine"), ["quarantine", *arguments])


def test_the_console_lists_shows_replays_and_drops(spark_lake: SparkLake, manifold: Callable[..., Result]) -> None:
    fixable = refuse(spark_lake, trigger(2, ["V1"]), "over max_ids=1")
    hopeless = refuse(spark_lake, trigger(3, []), "ids is empty")
    refuse(spark_lake, data(4, "d1", b"\xff"), "over max_data_bytes=0")

    def told(*arguments: str) -> Any:
        return json.loads(manifold(*arguments, "--json").stdout)

    assert [r["seq"] for r in told("ls", "--stream", "trigger")] == [hopeless, fixable]
    assert told("show", str(hopeless))["reason"] == "ids is empty"
    assert [r["seq"] for r in told("replay", "--matching", "MAX_")["replayed"]] == [fixable, seq_at(4)]
    assert told("drop", str(hopeless), "--note", "asked the platform")["dropped"] == [hopeless]
    assert told("ls") == []
    assert {r["seq"]: r["state"] for r in told("ls", "--all")} == {
        seq_at(4): "replayed",
        hopeless: "dropped",
        fixable: "replayed",
    }
    assert "asked the platform" in manifold("show", str(hopeless)).stdout


def test_the_console_explains_refused_operations(spark_lake: SparkLake, manifold: Callable[..., Result]) -> None:
    seq = refuse(spark_lake, trigger(2, []), "ids is empty")
    for arguments, word in (
        (["replay", str(seq)], "refused again"),
        (["show", "-5"], "no refused message has seq -5"),
        (["drop"], "--matching"),
    ):
        result = manifold(*arguments)
        assert result.exit_code != 0
        assert word in result.stderr.replace("\n", " ")


def several(spark_lake: SparkLake, files: int, each: int) -> None:
    """This many files of refusals in order of arrival."""
    ensure_tables(spark_lake.catalog)
    for first in range(0, files * each, each):
        said = {"stream": "trigger", "topic": "t", "payload": b"{}", "reason": "ids is missing; " + "send a list of VINs " * 20}
        rows = [said | {"seq": seq_at(ms), "received_at": at(ms)} for ms in range(first, first + each)]
        spark_lake.append(QUARANTINE, rows)


def test_pages_are_contiguous_and_list_each_seq_once(spark_lake: SparkLake) -> None:
    several(spark_lake, files=3, each=5)
    refuse(spark_lake, trigger(3, []), "ids is missing, again")  # a replay refused again
    refuse(spark_lake, data(7, "d1", b"x"), "something else")
    drop(spark_lake.catalog, [seq_at(3), seq_at(14)], note="", now=LATER)

    def walked(asked: RefusalFilter, limit: int) -> tuple[list[int], set[int]]:
        found: list[int] = []
        totals, before = set[int](), None
        while True:
            some = page(spark_lake.catalog, asked, limit=limit, before=before)
            found += [refused.seq for refused in some.refusals]
            totals.add(some.total)
            if not some.more:
                return found, totals
            before = some.refusals[-1].cursor

    every = [seq_at(ms) for ms in range(14, -1, -1)]
    for limit in (1, 4, 5, 15, 99):
        assert walked(RefusalFilter(matching="IDS is", settled=True), limit) == (every, {15})
        assert walked(RefusalFilter("trigger", matching="ids is"), limit) == (
            [s for s in every if s not in (seq_at(3), seq_at(14))],
            {13},
        )
    assert walked(RefusalFilter("outcome"), 4) == ([], {0})
    assert walked(RefusalFilter(since=at(10), settled=True), 2) == (every[:5], {5})


def test_dropping_any_number_reads_the_tables_equally_often(
    spark_lake: SparkLake, manifold: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    several(spark_lake, files=2, each=20)
    loads: list[str] = []
    load = SqlCatalog.load_table

    def counted(self: SqlCatalog, identifier: str) -> Table:
        loads.append(identifier)
        return load(self, identifier)

    monkeypatch.setattr(SqlCatalog, "load_table", counted)
    few = manifold("drop", *(str(seq_at(ms)) for ms in (3, 2, 3)), "--json")
    assert json.loads(few.stdout)["dropped"] == [seq_at(3), seq_at(2)]
    of_two = loads.count(QUARANTINE.identifier)
    loads.clear()
    rest = json.loads(manifold("drop", "--matching", "IDS is", "--json").stdout)["dropped"]
    assert rest == [seq_at(ms) for ms in range(40) if ms not in (2, 3)]
    assert loads.count(QUARANTINE.identifier) <= of_two + 1  # to find them
    assert page(spark_lake.catalog, RefusalFilter(), limit=9).total == 0
    assert page(spark_lake.catalog, RefusalFilter(settled=True), limit=9).total == 40


def test_an_unknown_seq_cannot_be_dropped(spark_lake: SparkLake) -> None:
    several(spark_lake, files=1, each=3)
    with pytest.raises(Permanent, match=f"no refused message has seq {seq_at(9)}"):
        drop(spark_lake.catalog, [seq_at(1), seq_at(9)], note="", now=LATER)
    assert spark_lake.rows(ACTIONS) == []
    assert drop(spark_lake.catalog, [], note="", now=LATER) == []


def peak_of(spark_lake: SparkLake, before: Cursor | None) -> int:
    """Peak memory in bytes of Arrow and Python for a page of ten."""
    with counted_arrow_memory() as pool:
        tracemalloc.start()
        try:
            assert len(page(spark_lake.catalog, RefusalFilter(), limit=10, before=before).refusals) == 10
            return int(pool.max_memory() or 0) + tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


def test_a_page_uses_bounded_memory_for_any_number_of_refusals(spark_lake: SparkLake) -> None:
    several(spark_lake, files=1, each=20_000)
    few = peak_of(spark_lake, None)
    several(spark_lake, files=12, each=20_000)
    assert peak_of(spark_lake, None) < 2 * few
    assert peak_of(spark_lake, (at(20), 0)) < 2 * few
    drop(spark_lake.catalog, seqs(spark_lake.catalog, RefusalFilter())[20:], note="a night of nonsense", now=LATER)
    assert peak_of(spark_lake, None) < 2 * few
