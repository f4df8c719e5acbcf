"""Tells Python that Manifold is installed where it lies: `python metadata.py pyproject.toml FOLDER` writes its dist-info."""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Write name, version and entry points."""
    project = tomllib.loads(Path(sys.argv[1]).read_text())["project"]
    folder = Path(sys.argv[2]) / f"{project['name']}-{project['version']}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")


if __name__ == "__main__":
    main()
