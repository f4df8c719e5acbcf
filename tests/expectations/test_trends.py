"""The trend charts: what each shows of `quality_results`, on a page that loads nothing."""

import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from expectations._trends import MAX_CHARTS, publish_trends, trends_of
from manifold.lake.files import Files
from manifold.lake.reports import TRENDS, run_page
from tests.expectations.results import Row, result

INLINE = "data:image/svg+xml;base64,"


class Tags(HTMLParser):
    """Every tag of a page with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def of(self, tag: str, attribute: str) -> list[str]:
        return [given[attribute] or "" for name, given in self.found if name == tag and attribute in given]


def page_of(folder: Path, rows: list[Row]) -> str:
    publish_trends(rows, Files(folder.as_uri()))
    return (folder / TRENDS).read_text()


def pictures_of(page: str) -> list[str]:
    return [base64.b64decode(source.removeprefix(INLINE)).decode() for source in Tags(page).of("img", "src")]


def test_a_broken_rule_and_each_table_have_a_chart() -> None:
    trends = trends_of([result(0), result(1, unexpected=50), result(2, judged=10)])

    (broken,), (rows,) = trends.broken, trends.rows
    assert (broken.suite, broken.rule, broken.severity, broken.values) == ("quarantine", "seq_is_unique", "error", [0, 0.25, 0])
    assert broken.summary == "broken in 1 of 3 judgements, by at most 25.00% of the rows, last none"
    assert (rows.suite, rows.values) == ("quarantine", [200, 200, 10])
    assert [audit.run_id for audit in trends.audits] == ["run0", "run1", "run2"]
    assert trends.kept == {}


def test_a_rule_without_offenders_is_listed_without_a_chart() -> None:
    trends = trends_of([result(0), result(0, "reason_says_something")])

    assert (trends.broken, trends.kept) == ([], {"quarantine": ["reason_says_something", "seq_is_unique"]})


def test_a_run_audited_twice_appears_twice() -> None:
    again = result(1, unexpected=0, at=result(2)["at"])

    assert [chart.values for chart in trends_of([result(1, unexpected=20), again]).broken] == [[0.1, 0]]


def test_the_chart_of_a_renamed_rule_ends_where_its_new_name_begins() -> None:
    rows = [result(0, "old", 20), result(1, "old"), result(2, "new", 20), result(3, "new")]

    trends = trends_of(rows)

    assert {chart.rule: (chart.values, chart.is_current) for chart in trends.broken} == {
        "old": ([0.1, 0, None, None], False),
        "new": ([None, None, 0.1, 0], True),
    }
    assert [chart.summary.endswith("not a rule any more") for chart in trends.broken if chart.rule == "old"] == [True]


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param({"unexpected": None}, id="no number of bad rows"),
        pytest.param({"judged": None}, id="no number of rows"),
        pytest.param({"unexpected": float("nan")}, id="not a number"),
        pytest.param({"judged": float("inf")}, id="infinite"),
        pytest.param({"judged": 0}, id="a share of zero rows"),
        pytest.param({"judged": -1}, id="negative"),
        pytest.param({"judged": "many"}, id="text"),
    ],
)
def test_a_value_that_is_not_a_number_leaves_a_gap(tmp_path: Path, odd: dict[str, Any]) -> None:
    rows = [result(0, unexpected=20), result(1, unexpected=20) | odd, result(2)]

    (chart,) = trends_of(rows).broken

    assert chart.values == [0.1, None, 0]
    assert "broken in 1 of 2 judgements" in page_of(tmp_path, rows)


def test_errors_come_first_then_the_most_recently_broken_rules() -> None:
    rows = [
        result(run, rule, 5 * (run == broken), severity=severity)
        for rule, severity, broken in (("a", "warning", 2), ("b", "error", 0), ("c", "error", 1), ("d", "of a later release", 2))
        for run in range(3)
    ]

    assert [chart.rule for chart in trends_of(rows).broken] == ["c", "b", "a", "d"]


def test_each_chart_has_a_text_description_and_the_page_fetches_nothing(tmp_path: Path) -> None:
    Files(tmp_path.as_uri()).write(run_page("run1"), b"a page")
    rows = [*(result(run, unexpected=run) for run in range(3)), *(result(n, "x<y>", 9, severity="warning") for n in range(2))]

    page = page_of(tmp_path, rows)

    tags = Tags(page)
    assert {tag for tag, _ in tags.found} & {"script", "iframe", "object", "embed", "link"} == set()
    assert all(source.startswith(INLINE) for source in tags.of("img", "src"))
    assert tags.of("img", "alt") == [
        "quarantine, seq_is_unique (error): broken in 2 of 3 judgements, by at most 1.00% of the rows, last 1.00%",
        "quarantine, x<y> (warning): broken in 2 of 2 judgements, by at most 4.50% of the rows; not a rule any more",
        "quarantine: at most 200 rows in a run, last 200 rows",
    ]
    assert tags.of("a", "href") == ["index.html", "runs/run1/index.html", "runs/run1/index.html"]  # only existing pages
    for picture in pictures_of(page):
        assert ET.fromstring(picture).tag.endswith("svg")
        assert not re.search(r"<script|<image|@import|href=\"(?!#)|url\((?!#)", picture)
        assert "2026-03-01 12:00" in picture


def test_the_page_is_deterministic(tmp_path: Path) -> None:
    rows = [result(run, unexpected=run) for run in range(3)]

    assert page_of(tmp_path / "one", rows) == page_of(tmp_path / "two", rows)


def test_only_the_worst_broken_rules_are_drawn(tmp_path: Path) -> None:
    rows = [result(0, f"rule_{n:02}", 1 + n) for n in range(MAX_CHARTS + 3)]

    page = page_of(tmp_path, rows)

    assert len(pictures_of(page)) == MAX_CHARTS + 1
    assert "3 more rules were broken" in page


@pytest.mark.parametrize(
    ("rows", "pictures"), [pytest.param([], 0, id="empty"), pytest.param([result(0, unexpected=1)], 2, id="one audit")]
)
def test_a_page_is_drawn_from_few_rows(tmp_path: Path, rows: list[Row], pictures: int) -> None:
    page = page_of(tmp_path, rows)

    assert len(pictures_of(page)) == pictures
    assert ("Nothing has been judged yet" in page) == (not rows)
