#!/usr/bin/env bash
# backup.sh HOME COPY: a copy of a running platform's state that can be restored. The order makes it whole:
# what a table or the ledger names is copied after them, and a message that moves from journal to archive meanwhile is in one of them, or both.
# Nothing may remove files in between: pause collect_garbage and compact_tables first. Without rsync on purpose: only what a platform has.
set -euo pipefail
home=$(cd "$1" && pwd)
mkdir -p "$2" && copy=$(cd "$2" && pwd)
[ -z "$(ls -A "$copy")" ] || { echo "backup: $copy is not empty" >&2; exit 1; }
umask 077
mkdir -p "$copy/lake"
python3 - "$home/lake/catalog.db" "$copy/lake/catalog.db" <<'PY'
import sqlite3
import sys

source, copy = (sqlite3.connect(path) for path in sys.argv[1:])
source.backup(copy)
PY
cp -a "$home/lake/warehouse" "$copy/lake/"
for part in journal archive reports secrets; do [ ! -e "$home/$part" ] || cp -a "$home/$part" "$copy/"; done
(cd "$copy" && find . -type f ! -name SHA256SUMS -exec sha256sum {} + >SHA256SUMS)
echo "$(wc -l <"$copy/SHA256SUMS") files in $copy"
