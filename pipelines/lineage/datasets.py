"""Names datasets for OpenLineage: tables and the archive by their location, the queues by the address of Redis."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot

from manifold.contracts.tables import NAMESPACE
from manifold.settings import Settings
from pipelines.lineage._place import Place
from pipelines.lineage.events import Json, facet

# OpenLineage's statistics of an output → the property of an Iceberg snapshot's summary that counts the same
SUMMARY_PROPERTIES = {"rowCount": "added-records", "fileCount": "added-data-files", "size": "added-files-size"}


def dataset(url: str, **facets: Json) -> Json:
    """Name a dataset by its URL: a file by its path, an object by its bucket and key."""
    parts = urlsplit(url)
    if parts.scheme in ("", "file"):
        return {"namespace": "file", "name": parts.path, "facets": facets}
    return {"namespace": f"{parts.scheme}://{parts.netloc}", "name": parts.path.strip("/"), "facets": facets}


def place(settings: Settings, name: Place) -> Json:
    """The archive, the signal keys, or the queues as a dataset. The queues have the address of Redis, without its login."""
    match name:
        case "archive":
            return dataset(settings.archive)
        case "keys":
            return dataset(f"{settings.archive.rstrip('/')}/keys")
        case "queues":
            host_and_port = urlsplit(settings.redis).netloc.rpartition("@")[2]
            return {"namespace": f"redis://{host_and_port}", "name": "queues", "facets": {}}


def table(settings: Settings, loaded: IcebergTable, snapshot_id: int | None = None) -> Json:
    """A table as a dataset, named by its location as Spark's listener names it, with its catalog name as a symlink.

    If `snapshot_id` is given, it is the dataset's version.
    """
    catalog_names = [{"namespace": settings.lineage_namespace, "name": f"{NAMESPACE}.{loaded.name()[-1]}", "type": "TABLE"}]
    facets = {"symlinks": facet("1-0-1", "SymlinksDatasetFacet", identifiers=catalog_names)}
    if snapshot_id is not None:
        facets["version"] = facet("1-0-1", "DatasetVersionDatasetFacet", datasetVersion=str(snapshot_id))
    return dataset(loaded.location(), **facets)


def changed_table(settings: Settings, loaded: IcebergTable, snapshots: Sequence[Snapshot], snapshot_id: int) -> Json:
    """A table as an output at `snapshot_id`, with the numbers of rows, files and bytes that `snapshots` added."""
    statistics = dict.fromkeys(SUMMARY_PROPERTIES, 0)
    for snapshot in snapshots:
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        for statistic, summary_property in SUMMARY_PROPERTIES.items():
            statistics[statistic] += int(summary.get(summary_property, "0"))
    statistics_facet = facet("1-0-2", "OutputStatisticsOutputDatasetFacet", **statistics)
    return table(settings, loaded, snapshot_id) | {"outputFacets": {"outputStatistics": statistics_facet}}
