"""Registers the sort orders of compacted files with the table, so that each file names its order by an id."""

from collections.abc import Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.table.update import AddSortOrderUpdate, AssertTableUUID
from pyiceberg.transforms import IdentityTransform
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random

from manifold.contracts.tables import Table

NULLS = "NULLS FIRST"  # as in the orders made here; Spark's must match to be recognised


@retry(
    retry=retry_if_exception_type(CommitFailedException), stop=stop_after_attempt(30), wait=wait_random(0.01, 0.3), reraise=True
)
def sort_order_id(catalog: Catalog, table: Table, columns: Sequence[str]) -> int:
    """Return the id of this ascending order in the table's metadata; add the order if it is new.

    It does not become the table's default order: writers still append in arrival order.
    """
    loaded = catalog.load_table(table.identifier)
    wanted = [loaded.schema().find_field(column).field_id for column in columns]
    known = _existing_order_id(loaded, wanted)
    if known is not None:
        return known
    fields = [
        SortField(source_id=f, transform=IdentityTransform(), direction=SortDirection.ASC, null_order=NullOrder.NULLS_FIRST)
        for f in wanted
    ]
    order = SortOrder(*fields, order_id=max(loaded.sort_orders()) + 1)
    update = AddSortOrderUpdate.model_validate({"sort-order": order.model_dump(by_alias=True)})
    catalog.commit_table(loaded, (AssertTableUUID(uuid=loaded.metadata.table_uuid),), (update,))
    return order.order_id


def _existing_order_id(loaded: IcebergTable, wanted: Sequence[int]) -> int | None:
    for number, order in loaded.sort_orders().items():
        if [field.source_id for field in order.fields] == list(wanted):
            return number
    return None
