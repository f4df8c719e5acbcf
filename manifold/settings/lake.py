"""Settings of the lake: catalog, warehouse, reports and lineage."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from manifold.contracts import catalog_properties
from manifold.contracts.lineage import RunName
from manifold.settings.field import Positive, Seconds, SecondsOrNone, Secret, of_form
from manifold.settings.field import setting as _s
from manifold.settings.shared import SharedSettings


def _require_uri(uri: SecretStr) -> SecretStr:
    text = uri.get_secret_value()
    if text and "://" not in text:
        raise ValueError("must be a URL, such as postgresql+psycopg://user:password@host/database or https://host/catalog")
    return uri


def _normalised_properties(value: object) -> str:
    return catalog_properties.normalised(value.get_secret_value() if isinstance(value, SecretStr) else value)


def _run_name(text: str) -> str:
    return str(RunName.parse(text)) if text else ""


LineageUrl = Annotated[Secret, of_form(r"(https?://[^/]+.*|file:///.+)?", "must begin with http://, https:// or file:///")]


class LakeSettings(SharedSettings):
    """The catalog, the warehouse, the reports, and the lineage of what is in them."""

    catalog_name: str = _s("manifold", "name of the Iceberg catalog; part of the SQL catalog's key")
    catalog_type: Annotated[str, Field(pattern="^(sql|rest)$")] = _s("sql", "sql or rest")
    catalog_uri: Annotated[Secret, AfterValidator(_require_uri)] = _s(
        SecretStr(""), "address of the catalog; empty: SQLite in <home>/lake/catalog.db"
    )
    catalog_properties: Annotated[SecretStr, BeforeValidator(_normalised_properties)] = _s(
        SecretStr(""),
        "further properties of the catalog for PyIceberg and Spark, a JSON object: token, credential, rest.sigv4-enabled, …",
    )
    catalog_wait_seconds: SecondsOrNone = _s(
        60, "how long a pipeline's job waits for a catalog that is away or locked before it gives up; it can then be run again"
    )
    warehouse: str = _s(
        "",
        "root of the tables, file:// or s3://, or what a REST catalog calls it; empty: <home>/lake/warehouse, with REST its own",
    )
    lake_late_seconds: Seconds = _s(
        3600, "a segment of the archive that is not in the lake after so long is told to alert_url; see manifold_lake_age_seconds"
    )
    reports: Annotated[str, Field(pattern=r"^((file|s3)://.+|[^:]*)$")] = _s(
        "", "store of the HTML reports: a folder, file:// or s3://; empty: <home>/reports"
    )
    report_max: Positive = _s(200, "runs that the quality reports keep")
    lineage_url: LineageUrl = _s(
        SecretStr(""),
        "gets OpenLineage events of runs and jobs: http(s)://…/api/v1/lineage, or file://… (lines of JSON); empty: none",
    )
    lineage_namespace: Annotated[str, Field(min_length=1)] = _s("manifold", "namespace of the jobs in those events")
    lineage_parent: Annotated[str, AfterValidator(_run_name)] = _s(
        "", "the run that starts a job, for those events: <namespace>/<job>/<run id>, as Airflow's tasks say it; empty: none"
    )
    lineage_token: Secret = _s(SecretStr(""), "token of the address at lineage_url; empty: none is sent")

    @property
    def catalog(self) -> str:
        """URI of the catalog for PyIceberg."""
        return self.catalog_uri.get_secret_value() or f"sqlite:///{self.home}/lake/catalog.db"

    @property
    def warehouse_url(self) -> str:
        """URL of the warehouse's root. A REST catalog may have a name for the warehouse instead; empty means its default."""
        if self.catalog_type == "rest":
            return self.warehouse
        return self.warehouse or f"file://{self.home}/lake/warehouse"

    @property
    def lake_on_s3(self) -> bool:
        """Whether the tables are in object storage. This is assumed if only the catalog knows where the warehouse is."""
        is_known_to_catalog_only = "://" not in self.warehouse_url
        return is_known_to_catalog_only or self.warehouse_url.startswith("s3://")

    @property
    def catalog_options(self) -> dict[str, str]:
        """Catalog properties for PyIceberg and Spark, in addition to type, address and warehouse. They contain secrets."""
        storage = self.s3.for_iceberg() if self.lake_on_s3 else {}
        return storage | catalog_properties.read(self.catalog_properties.get_secret_value())

    @property
    def reports_folder(self) -> str:
        """Location of the HTML reports: a local folder, or a URL."""
        return self.reports or str(self.home / "reports")

    @property
    def reports_url(self) -> str:
        """URL of the HTML reports' store."""
        if "://" in self.reports:
            return self.reports.rstrip("/")
        folder = Path(self.reports).expanduser().absolute() if self.reports else self.home / "reports"
        return folder.as_uri()
