"""OpenLineage names of datasets: the location of a table or of the archive, the address of Redis for the queues."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot

from manifold.contracts.tables import NAMESPACE
from manifold.settings import Settings
from pipelines.lineage._place import Place
from pipelines.lineage.events import Json, facet

ADDED = {"rowCount": "added-records", "fileCount": "added-data-files", "size": "added-files-size"}  # in a snapshot's summary


def dataset(url: str, **facets: Json) -> Json:
    """A dataset by its URL: the path of a file, or the bucket and key of an object."""
    parts = urlsplit(url)
    if parts.scheme in ("", "file"):
        return {"namespace": "file", "name": parts.path, "facets": facets}
    return {"namespace": f"{parts.scheme}://{parts.netloc}", "name": parts.path.strip("/"), "facets": facets}


def place(settings: Settings, name: Place) -> Json:
    """The archive, the signal keys, or the queues as a dataset; the address of Redis without its login."""
    match name:
        case "archive":
            return dataset(settings.archive)
        case "keys":
            return dataset(f"{settings.archive.rstrip('/')}/keys")
        case "queues":
            at = urlsplit(settings.redis).netloc.rpartition("@")[2]
            return {"namespace": f"redis://{at}", "name": "queues", "facets": {}}


def table(settings: Settings, loaded: IcebergTable, version: int | None = None) -> Json:
    """A table as a dataset: its location, as Spark's listener names it, and its catalog name; at `version`, if given."""
    known = [{"namespace": settings.lineage_namespace, "name": f"{NAMESPACE}.{loaded.name()[-1]}", "type": "TABLE"}]
    facets = {"symlinks": facet("1-0-1", "SymlinksDatasetFacet", identifiers=known)}
    if version is not None:
        facets["version"] = facet("1-0-1", "DatasetVersionDatasetFacet", datasetVersion=str(version))
    return dataset(loaded.location(), **facets)


def written(settings: Settings, loaded: IcebergTable, snapshots: Sequence[Snapshot], version: int) -> Json:
    """A table at that version, with the counts of what these snapshots added."""
    counts = dict.fromkeys(ADDED, 0)
    for snapshot in snapshots:
        said = snapshot.summary.additional_properties if snapshot.summary else {}
        for name, of in ADDED.items():
            counts[name] += int(said.get(of, "0"))
    statistics = facet("1-0-2", "OutputStatisticsOutputDatasetFacet", **counts)
    return table(settings, loaded, version) | {"outputFacets": {"outputStatistics": statistics}}
