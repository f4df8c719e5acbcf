"""Writes the tables of variables and outputs into the READMEs of the root and its modules, from their *.tf files.

python infra/terraform/tables.py
"""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
BLOCK = re.compile(r'^(variable|output) "(\w+)" \{\n(.*?)^\}', re.MULTILINE | re.DOTALL)
BEGIN, END = "<!-- tables: python infra/terraform/tables.py -->", "<!-- end of tables -->"


def folders() -> list[Path]:
    """The root and every module."""
    return [HERE, *sorted(path for path in (HERE / "modules").iterdir() if path.is_dir())]


def tables(folder: Path) -> str:
    """The tables of one folder, with the markers around them."""
    found: dict[str, list[str]] = {"variable": [], "output": []}
    for path in sorted(folder.glob("*.tf")):
        for kind, name, body in BLOCK.findall(path.read_text()):
            row = [f"`{name}`", _description(body)]
            if kind == "variable":
                row[1:1] = [_default(body)]
            found[kind].append(f"| {' | '.join(row)} |")
    parts = [BEGIN, ""]
    for kind, head in (("variable", "| variable | default | what |\n|---|---|---|"), ("output", "| output | what |\n|---|---|")):
        if found[kind]:
            parts += [head, *sorted(found[kind]), ""]
    return "\n".join([*parts, END])


def with_tables(folder: Path) -> str:
    """The README of a folder as it should be."""
    text = (folder / "README.md").read_text()
    before, _, rest = text.partition(BEGIN)
    return before + tables(folder) + rest.partition(END)[2]


def _description(body: str) -> str:
    match = re.search(r'^  description = "(.*)"$', body, re.MULTILINE)
    return match.group(1).replace('\\"', '"').replace("|", "\\|") if match else ""


def _default(body: str) -> str:
    match = re.search(r"^  default\s*= (.*)$", body, re.MULTILINE)
    return f"`{match.group(1)}`" if match else "–"


if __name__ == "__main__":
    for each in folders():
        (each / "README.md").write_text(with_tables(each))
    sys.stdout.write(f"{len(folders())} READMEs\n")
