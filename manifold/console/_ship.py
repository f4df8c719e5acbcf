"""`manifold ship`: write the files that a Spark cluster needs."""

from pathlib import Path
from typing import Annotated

import typer

from manifold.console._output import USAGE, AsJson, fail, handle_errors, out, print_json, settings_or_fail

Folder = Annotated[Path, typer.Argument(help="The folder to write to; the files of an earlier bundle there are replaced.")]
Python = Annotated[
    Path | None,
    typer.Option(help="Path of Python on the nodes; its version must be that of this Python.", show_default="this Python's path"),
]
WithDriver = Annotated[
    bool, typer.Option("--with-driver", help="Add what drivers need, to run them on the cluster (deploy mode cluster).")
]


@handle_errors
def ship(folder: Folder, python: Python = None, with_driver: WithDriver = False, as_json: AsJson = False) -> None:
    """Write code, environment, jars and Spark's defaults for a Spark cluster; Manifold need not be installed on its nodes."""
    settings = settings_or_fail()
    from pipelines.spark.cluster_bundle import ship as write_bundle

    try:
        shipped = write_bundle(settings, folder, python=python, with_driver=with_driver)
    except OSError as exc:
        fail(f"cannot write into {folder} ({exc.strerror or exc}); name a folder that can be written", USAGE)
    if as_json:
        print_json(shipped.to_json())
        return
    out.print(f"{shipped.bytes >> 20} MiB in {folder}: code, environment, {len(shipped.jars)} jars")
    out.print(f'set in the extra of the Airflow connection spark_default: {{"properties-file": "{shipped.defaults}"}}')
