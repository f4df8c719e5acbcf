"""`make bench`: every benchmark at the size of its aim, one after the other. Takes minutes, and wants the machine to itself."""

from benchmarks import (
    api,
    asking,
    audit,
    campaigns,
    compaction,
    dispatch,
    grown,
    growth,
    ingest,
    lakes,
    latency,
    layout,
    no_work,
    one_vehicle,
    populate,
    rebuild,
    signals,
    wiped,
)
from benchmarks.machine import report
from manifold.runtime.log import configure_logging

if __name__ == "__main__":
    configure_logging("benchmark", level="warning")
    report("latency", latency.SETTING, latency.run())
    report("dispatch", dispatch.SETTING.format(size=dispatch.Size()), dispatch.run(dispatch.Size()))
    report("signals", signals.SETTING.format(size=signals.Size()), signals.run(signals.Size()))
    report("one_vehicle", one_vehicle.SETTING.format(entries=one_vehicle.ENTRIES), one_vehicle.run(one_vehicle.ENTRIES))
    for case in ingest.CASES:
        report("ingest" if case == "plain" else f"ingest-{case}", f"{case}, {ingest.ROWS:,} entries", ingest.run(case))
    report("growth", growth.setting(grown.Size()), growth.run(grown.Size()))
    report("layout", f"{layout.ROWS:,} rows of a day, {layout.VEHICLES:,} vehicles", layout.run())
    report("no_work", no_work.SETTING.format(runs=no_work.RUNS), no_work.run())
    report("audit", f"{audit.ROWS:,} rows", audit.run())
    entries = f"{lakes.ENTRIES:,} entries, {lakes.ENTRIES_A_VEHICLE} a vehicle"
    report("populate", entries, populate.run())
    report("rebuild", f"{entries}, a tenth of them ended", rebuild.run())
    shape = {"payloads": wiped.PAYLOADS, "kib": wiped.KIB, "days": wiped.DAYS}
    report("wiped", wiped.SETTING.format(**shape), wiped.run())
    report("verify", f"{entries}, a tenth of them ended", rebuild.run(verification=True))
    report("compaction", f"{compaction.FILES:,} files of {compaction.ROWS_A_FILE:,} rows", compaction.run())
    report("campaigns", campaigns.SETTING.format(targets=campaigns.TARGETS), campaigns.Bench(campaigns.TARGETS).run())
    report("api", api.setting(api.VINS), api.run())
    report("asking", asking.setting(asking.VINS), asking.run())
