"""`python metadata.py pyproject.toml FOLDER`: writes Manifold's dist-info, so that it counts as an installed distribution."""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Write the metadata file with name and version."""
    project = tomllib.loads(Path(sys.argv[1]).read_text())["project"]
    folder = Path(sys.argv[2]) / f"{project['name']}-{project['version']}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")


if __name__ == "__main__":
    main()
