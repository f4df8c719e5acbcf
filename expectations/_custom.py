"""Custom expectations, registered with Great Expectations, each with the sentence that Data Docs show."""

from typing import Any, ClassVar

from great_expectations.expectations.expectation import BatchExpectation
from great_expectations.render import LegacyRendererType, RenderedStringTemplateContent
from great_expectations.render.renderer.renderer import renderer

from expectations._metrics import OF_ABSENT, OF_REPEATED, OF_ROWS, ROW_COUNT


class _Counted(BatchExpectation):  # type: ignore[misc]  # the library is read without its types
    """An expectation that holds if its metric counts no rows."""

    counts: ClassVar[str] = ""
    words: ClassVar[str] = ""  # the sentence of Data Docs; `$name` stands for an argument

    @classmethod
    def is_abstract(cls) -> bool:
        """Whether this class is a base class only."""
        return not cls.counts

    @classmethod
    def sentence(cls, _: dict[str, Any]) -> str:
        """The sentence for these arguments."""
        return cls.words

    def _validate(self, metrics: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
        rows, broken = metrics[ROW_COUNT], metrics[self.counts]
        share = 100 * broken / rows if rows else 0.0
        counted = {"element_count": rows, "unexpected_count": broken, "unexpected_percent": share}
        return {"success": not broken, "result": counted}

    @classmethod
    @renderer(renderer_type=LegacyRendererType.PRESCRIPTIVE)  # type: ignore[untyped-decorator]
    def _prescriptive_renderer(
        cls, configuration: Any = None, result: Any = None, runtime_configuration: Any = None, **_: Any
    ) -> list[RenderedStringTemplateContent]:
        config = configuration or result.expectation_config
        styling = (runtime_configuration or {}).get("styling")
        params = {name: ", ".join(value) if isinstance(value, list | tuple) else value for name, value in config.kwargs.items()}
        template = {"template": cls.sentence(config.kwargs), "params": params, "styling": styling}
        return [RenderedStringTemplateContent(content_block_type="string_template", string_template=template)]


class ExpectRowsToHold(_Counted):
    """A Spark SQL condition over one row is never false."""

    counts: ClassVar[str] = OF_ROWS
    words: ClassVar[str] = "In each row, $says. In SQL: $sql"
    metric_dependencies: ClassVar[tuple[str, ...]] = (ROW_COUNT, OF_ROWS)
    success_keys: ClassVar[tuple[str, ...]] = ("sql",)

    says: str
    sql: str


class ExpectVinsToBeIso3779(_Counted):
    """VINs are of the form of ISO 3779 and have the right check digit."""

    counts: ClassVar[str] = OF_ROWS
    words: ClassVar[str] = "values must be VINs by ISO 3779, with their check digit in the ninth place."
    metric_dependencies: ClassVar[tuple[str, ...]] = (ROW_COUNT, OF_ROWS)
    success_keys: ClassVar[tuple[str, ...]] = ("sql", "counted")

    column: str
    sql: str
    counted: int | None = None


class ExpectValuesToBeUniqueInTable(_Counted):
    """The values of a row occur in no other row of a whole table."""

    counts: ClassVar[str] = OF_REPEATED
    words: ClassVar[str] = "Values of $columns must occur only once in all of $in_table."
    metric_dependencies: ClassVar[tuple[str, ...]] = (ROW_COUNT, OF_REPEATED)
    success_keys: ClassVar[tuple[str, ...]] = ("columns", "in_table")

    columns: list[str]
    in_table: str


class ExpectValuesToExistInTable(_Counted):
    """The values of a row exist in a row of another table."""

    counts: ClassVar[str] = OF_ABSENT
    metric_dependencies: ClassVar[tuple[str, ...]] = (ROW_COUNT, OF_ABSENT)
    success_keys: ClassVar[tuple[str, ...]] = ("columns", "in_table", "unless", "bounded_by")

    columns: list[str]
    in_table: str
    unless: str | None = None
    bounded_by: str | None = None

    @classmethod
    def sentence(cls, kwargs: dict[str, Any]) -> str:
        """The rule in words."""
        return "Values of $columns must exist in $in_table" + (", unless $unless." if kwargs.get("unless") else ".")
