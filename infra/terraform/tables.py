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
    """Return the folder of the root module, and those of all other modules."""
    return [HERE, *sorted(path for path in (HERE / "modules").iterdir() if path.is_dir())]


def tables(folder: Path) -> str:
    """Return the tables of one folder's variables and outputs, between the markers."""
    variables, outputs = [], []
    for path in sorted(folder.glob("*.tf")):
        for kind, name, body in BLOCK.findall(path.read_text()):
            if kind == "variable":
                variables.append(f"| `{name}` | {_default(body)} | {_description(body)} |")
            else:
                outputs.append(f"| `{name}` | {_description(body)} |")
    lines = [BEGIN, ""]
    if variables:
        lines += ["| variable | default | what |", "|---|---|---|", *sorted(variables), ""]
    if outputs:
        lines += ["| output | what |", "|---|---|", *sorted(outputs), ""]
    return "\n".join([*lines, END])


def with_tables(folder: Path) -> str:
    """Return the text of a folder's README with the current tables in place of the old ones."""
    text = (folder / "README.md").read_text()
    before, _, old_tables_and_rest = text.partition(BEGIN)
    _, _, after = old_tables_and_rest.partition(END)
    return before + tables(folder) + after


def _description(body: str) -> str:
    match = re.search(r'^  description = "(.*)"$', body, re.MULTILINE)
    return match.group(1).replace('\\"', '"').replace("|", "\\|") if match else ""


def _default(body: str) -> str:
    match = re.search(r"^  default\s*= (.*)$", body, re.MULTILINE)
    return f"`{match.group(1)}`" if match else "–"


if __name__ == "__main__":
    for folder in folders():
        (folder / "README.md").write_text(with_tables(folder))
    sys.stdout.write(f"{len(folders())} READMEs\n")
