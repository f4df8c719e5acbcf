"""Tables for people: identifiers are never wrapped, so that they can be read, selected and searched for."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

GAP = 1  # cells of space on each side of a column, except at the edges
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:")


@dataclass(frozen=True, slots=True)
class Rows:
    """A title, and rows below column names. Each row is printed on one line if its words and identifiers fit.

    Outside a terminal, lines are as long as necessary. On a terminal that is too narrow, each field gets its own line.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield Text(self.title, "italic")
        wanted = [max(map(cell_len, column)) for column in self._by_column()]
        if not console.is_terminal:
            yield from console.render(self._as_table(wanted), options.update(width=self._width(wanted)))
            return
        least = [max(map(_unbroken, column)) for column in self._by_column()]
        widths = _fit_widths(wanted, least, options.max_width - self._width([0] * len(wanted)))
        yield self._as_fields() if widths is None else self._as_table(widths)

    def _by_column(self) -> list[tuple[str, ...]]:
        return list(zip(self.columns, *self.rows, strict=True))

    def _width(self, columns: Sequence[int]) -> int:
        return sum(columns) + 2 * GAP * (len(columns) - 1)

    def _as_table(self, widths: Sequence[int]) -> Table:
        rendered = Table(header_style="bold", box=None, pad_edge=False)
        for column, width in zip(self.columns, widths, strict=True):
            rendered.add_column(column, width=width, overflow="fold")
        for row in self.rows:
            rendered.add_row(*map(Text, row))
        return rendered

    def _as_fields(self) -> Text:
        label = max(map(cell_len, self.columns)) + 2 * GAP
        blocks = []
        for row in self.rows:
            fields = zip(self.columns, row, strict=True)
            blocks.append(Text("\n").join(Text.assemble((f"{column:<{label}}", "bold"), value) for column, value in fields))
        return Text("\n\n").join(blocks)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Rows:
    """Build a table from any values; None becomes a dash."""
    return Rows(title, columns, [[shown(value) for value in row] for row in rows])


def shown(value: object) -> str:
    """Format a value for people."""
    if value is None:
        return "–"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
    return printable(str(value))


def printable(text: str, kept: str = "") -> str:
    """The text with unprintable characters, which might control the terminal, as Python escapes; those in `kept` are kept."""
    return "".join(
        character if character.isprintable() or character in kept else character.encode("unicode_escape").decode()
        for character in text
    )


def _unbroken(cell: str) -> int:
    """Return the width in terminal cells of the longest unbreakable part: a word, or a time."""
    if _TIME.match(cell):
        return cell_len(cell)
    return max(map(cell_len, cell.split()), default=0)


def _fit_widths(wanted: Sequence[int], least: Sequence[int], room: int) -> list[int] | None:
    """Shrink the widths from `wanted`, always that of the widest column, until they fit `room`; None if `least` does not fit."""
    if sum(least) > room:
        return None
    widths = list(wanted)
    while sum(widths) > room:
        shrinkable = [column for column in range(len(widths)) if widths[column] > least[column]]
        widest = max(shrinkable, key=widths.__getitem__)
        widths[widest] -= 1
    return widths
