#!/usr/bin/env python3
"""A kubectl replacement for secrets.sh and certificates.sh: it keeps Secrets in files of $KEPT and logs its calls."""

import json
import os
import re
import sys
from base64 import b64encode
from itertools import pairwise
from pathlib import Path

KEPT = Path(os.environ["KEPT"])


def main(arguments: list[str]) -> int:
    with (KEPT / "called").open("a") as log:
        log.write(" ".join(arguments) + "\n")
    if (KEPT / "away").exists():
        sys.stderr.write("The connection to the server was refused\n")
        return 1
    if "-f" in arguments:
        given = json.load(sys.stdin)
        with (KEPT / "namespaces").open("a") as log:
            log.write(f"{given['metadata']['namespace']}/{given['metadata']['name']}\n")
        file = KEPT / f"{given['metadata']['name']}.json"
        if file.exists() != ("replace" in arguments):
            sys.stderr.write(f"{file.stem}: not to be had or already there\n")
            return 1
        file.write_text(json.dumps(given["stringData"]))
        return 0
    if arguments[:1] == ["create"] or "namespace" in arguments:
        return 0
    (name,) = (after for before, after in pairwise(arguments) if before == "secret")
    file = KEPT / f"{name}.json"
    unseen = KEPT / f"{name}.unseen"  # another run creates it right after this check
    if not file.exists() or unseen.exists():
        unseen.unlink(missing_ok=True)
        return 0 if "--ignore-not-found" in arguments else 1
    if asked := re.search(r"jsonpath=\{\.data\['(.+)'\]\}", " ".join(arguments)):
        sys.stdout.write(b64encode(json.loads(file.read_text())[asked[1].replace("\\", "")].encode()).decode())
    else:
        sys.stdout.write(f"secret/{name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
