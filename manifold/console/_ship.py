"""`manifold ship`: write the files that a Spark cluster needs."""

from pathlib import Path
from typing import Annotated

import typer

from manifold.console._output import USAGE, AsJson, fail, handle_errors, out, print_json, settings_or_fail

Folder = Annotated[Path, typer.Argument(help="The folder to write to; the files of an earlier bundle there are replaced.")]
Python = Annotated[Path | None, typer.Option(help="Python of the nodes, of this one's version.", show_default="this one's path")]
WithDriver = Annotated[bool, typer.Option("--with-driver", help="Drivers run on the cluster, too (deploy mode cluster).")]


@handle_errors
def ship(folder: Folder, python: Python = None, with_driver: WithDriver = False, as_json: AsJson = False) -> None:
    """Write code, environment, jars and Spark's defaults for a Spark cluster; its nodes need nothing of Manifold."""
    settings = settings_or_fail()
    from pipelines.spark.cluster_bundle import ship as write

    try:
        shipped = write(settings, folder, python=python, with_driver=with_driver)
    except OSError as exc:
        fail(f"cannot write into {folder} ({exc.strerror or exc}); name a folder that can be written", USAGE)
    if as_json:
        print_json(shipped.to_json())
        return
    out.print(f"{shipped.bytes >> 20} MiB in {folder}: code, environment, {len(shipped.jars)} jars")
    out.print(f'in the Airflow connection spark_default: {{"properties-file": "{shipped.defaults}"}}')
