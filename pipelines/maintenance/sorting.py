"""Registers sort orders with a table, so that each compacted file can name its sort order by an id."""

from collections.abc import Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.table.update import AddSortOrderUpdate, AssertTableUUID
from pyiceberg.transforms import IdentityTransform
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random

from manifold.contracts.tables import Table

NULLS = "NULLS FIRST"  # for Spark's sort; must equal the null order of the fields below, or the files get no order id


@retry(
    retry=retry_if_exception_type(CommitFailedException), stop=stop_after_attempt(30), wait=wait_random(0.01, 0.3), reraise=True
)
def sort_order_id(catalog: Catalog, table: Table, columns: Sequence[str]) -> int:
    """Return the id of the ascending sort order by these columns; add the order to the table's metadata if it is new.

    The order does not become the table's default order: writers still append in arrival order.
    """
    loaded = catalog.load_table(table.identifier)
    field_ids = [loaded.schema().find_field(column).field_id for column in columns]
    existing_id = _existing_order_id(loaded, field_ids)
    if existing_id is not None:
        return existing_id
    fields = [
        SortField(
            source_id=field_id,
            transform=IdentityTransform(),
            direction=SortDirection.ASC,
            null_order=NullOrder.NULLS_FIRST,
        )
        for field_id in field_ids
    ]
    order = SortOrder(*fields, order_id=max(loaded.sort_orders()) + 1)
    update = AddSortOrderUpdate.model_validate({"sort-order": order.model_dump(by_alias=True)})
    catalog.commit_table(loaded, (AssertTableUUID(uuid=loaded.metadata.table_uuid),), (update,))
    return order.order_id


def _existing_order_id(loaded: IcebergTable, field_ids: Sequence[int]) -> int | None:
    """Return the id of the table's sort order by these fields; None if it has none. Every order added here is ascending."""
    for order_id, order in loaded.sort_orders().items():
        if [field.source_id for field in order.fields] == list(field_ids):
            return order_id
    return None
