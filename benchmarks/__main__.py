"""`make bench`: every benchmark at the size of its aim, one after the other. Takes minutes, and wants the machine to itself."""

from adapters.log import configure_logging
from benchmarks import ingest, latency, populate
from benchmarks.machine import report

if __name__ == "__main__":
    configure_logging("benchmark", level="warning")
    report("latency", latency.SETTING, latency.run())
    report("ingest", f"{ingest.ROWS:,} id rows", ingest.run())
    report("populate", f"{populate.ENTRIES:,} entries, {populate.ENTRIES_A_VEHICLE} a vehicle", populate.run())
