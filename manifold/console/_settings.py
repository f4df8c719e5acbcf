"""`manifold settings`: every setting with its value, default, source and meaning."""

from typing import Any

from pydantic import SecretStr

from manifold.console._output import AsJson, handle_errors, out, print_json, settings_or_fail, table
from manifold.settings import PREFIX, Settings, source_of


@handle_errors
def settings(as_json: AsJson = False) -> None:
    """Print every setting: its value, default, source and meaning. Secrets are masked."""
    effective = settings_or_fail()
    rows = [
        {
            "name": name,
            "variable": PREFIX + name.upper(),
            "value": _shown_value(getattr(effective, name)),
            "default": _shown_value(field.default),
            "source": source_of(name),
            "meaning": field.description,
        }
        for name, field in Settings.model_fields.items()
    ]
    if as_json:
        print_json(rows)
        return
    columns = ("variable", "value", "default", "source", "meaning")
    table_rows = []
    for row in rows:
        cells = [row[column] for column in columns]
        table_rows.append([None if cell == "" else cell for cell in cells])  # the table shows None as a dash
    out.print(table("", columns, table_rows))


def _shown_value(value: Any) -> bool | int | float | str:
    """A setting's value as it is printed: secrets are masked, None and an empty secret become an empty text.

    Values that JSON has stay as they are; others, such as paths, become text.
    """
    if isinstance(value, SecretStr):
        return "********" if value.get_secret_value() else ""
    if value is None:
        return ""
    if isinstance(value, bool | int | float | str):
        return value
    return str(value)
