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
        """Yield what Rich prints: the title, then a table; or fields, if a terminal is too narrow for the words of a row."""
        if self.title:
            yield Text(self.title, "italic")
        full_widths = [max(map(cell_len, column)) for column in self._by_column()]
        if not console.is_terminal:
            yield from console.render(self._as_table(full_widths), options.update(width=sum(full_widths) + self._gaps_width()))
            return
        min_widths = [max(map(_longest_part, column)) for column in self._by_column()]
        widths = _fit_widths(full_widths, min_widths, max_sum=options.max_width - self._gaps_width())
        yield self._as_fields() if widths is None else self._as_table(widths)

    def _by_column(self) -> list[tuple[str, ...]]:
        """The cells of each column, with the column's name first."""
        return list(zip(self.columns, *self.rows, strict=True))

    def _gaps_width(self) -> int:
        return 2 * GAP * (len(self.columns) - 1)

    def _as_table(self, widths: Sequence[int]) -> Table:
        rendered = Table(header_style="bold", box=None, pad_edge=False)
        for column, width in zip(self.columns, widths, strict=True):
            rendered.add_column(column, width=width, overflow="fold")
        for row in self.rows:
            rendered.add_row(*map(Text, row))
        return rendered

    def _as_fields(self) -> Text:
        """The rows as blocks, with a line for each field: the column's name, and the value."""
        label_width = max(map(cell_len, self.columns)) + 2 * GAP
        blocks = []
        for row in self.rows:
            lines = []
            for column, value in zip(self.columns, row, strict=True):
                label = f"{column:<{label_width}}"
                lines.append(Text.assemble((label, "bold"), value))
            blocks.append(Text("\n").join(lines))
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


def _longest_part(text: str) -> int:
    """Return the width in terminal cells of the longest part that must not be wrapped: the longest word, or a whole time."""
    if _TIME.match(text):
        return cell_len(text)
    return max(map(cell_len, text.split()), default=0)


def _fit_widths(full_widths: Sequence[int], min_widths: Sequence[int], max_sum: int) -> list[int] | None:
    """Return widths whose sum is at most `max_sum`; None if even the minimal widths are too wide.

    The widest column that can still shrink is shrunk, cell by cell, until the widths fit.
    """
    if sum(min_widths) > max_sum:
        return None
    widths = list(full_widths)
    while sum(widths) > max_sum:
        shrinkable = [column for column in range(len(widths)) if widths[column] > min_widths[column]]
        widest = max(shrinkable, key=widths.__getitem__)
        widths[widest] -= 1
    return widths
