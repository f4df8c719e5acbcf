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
            "value": _plain(getattr(effective, name)),
            "default": _plain(field.default),
            "source": source_of(name),
            "meaning": field.description,
        }
        for name, field in Settings.model_fields.items()
    ]
    if as_json:
        print_json(rows)
        return
    columns = ("variable", "value", "default", "source", "meaning")
    out.print(table("", columns, [[row[column] if row[column] != "" else None for column in columns] for row in rows]))


def _plain(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return "********" if value.get_secret_value() else ""
    if value is None:
        return ""
    return value if isinstance(value, bool | int | float | str) else str(value)
