"""docs/reference/messages.md says what the code says."""

import re

import pytest

from manifold.contracts import keys
from manifold.contracts.envelope import SEGMENT_SCHEMA
from manifold.contracts.outcomes import CODES, EntryState, Outcome
from manifold.contracts.tables import EVERY_TABLE, Table
from tests.support.servers import ROOT

PAGE = (ROOT / "docs" / "reference" / "messages.md").read_text()


@pytest.mark.parametrize("table", EVERY_TABLE, ids=lambda table: table.name)
def test_the_page_has_each_tables_key_day_and_columns(table: Table) -> None:
    row = f"| `{table.name}` | {', '.join(table.key)} | {table.day_of or '–'} | {', '.join(c.name for c in table.columns)} |"

    assert row in PAGE


def test_the_page_has_every_redis_key() -> None:
    owner = [key.replace("V}", "owner}") for key in keys.owner_keys("V")]
    others = [keys.trigger(0), keys.data("x"), keys.waiting_for("x"), keys.dedupe("x"), keys.wake(0), keys.deadlines(0)]
    others += keys.handed_marks(0, of_cluster=False)
    alone = [keys.OUTCOMES, keys.LOADED, keys.TAKEN, keys.QUEUE_STATS, keys.QUEUE_STATS_LEASE]
    shapes = owner + [key.rpartition(":")[0] + ":<" for key in others] + alone

    assert [shape for shape in shapes if f"| `{shape}" not in PAGE] == []


def test_the_page_says_which_number_stands_for_which_outcome() -> None:
    assert ", ".join(f"{code} {outcome.value}" for outcome, code in CODES.items()) in PAGE


def test_the_page_has_every_column_of_the_archive_and_every_word_for_a_state() -> None:
    words = [*SEGMENT_SCHEMA.names, *(o.value for o in Outcome), *(s.value for s in EntryState)]

    assert [word for word in words if not re.search(rf"`{word}`", PAGE)] == []
