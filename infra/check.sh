#!/usr/bin/env bash
# `make check`: format, lint, import rules and types, with the tests named by the arguments. Edits nothing; prints what failed.
set -uo pipefail
cd "$(dirname "$0")/.."

log=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$log"' EXIT
trap 'exit 130' INT TERM
failed=0

report() { # name, exit status: the last line of what passed, all of what failed
  if [ "$2" -eq 0 ]; then
    printf '  %-13s %s\n' "$1" "$(tail -1 "$log/$1")"
  else
    printf '\n%s failed:\n' "$1"
    cat "$log/$1"
    failed=1
  fi
}

run() { # name, command
  local name=$1
  shift
  "$@" >"$log/$name" 2>&1
  report "$name" $?
}

# Types and tests each need a core for most of the time, if nothing is cached.
.venv/bin/mypy >"$log/types" 2>&1 &
types=$!
run format .venv/bin/ruff format --check .
run lint .venv/bin/ruff check .
run "import rules" .venv/bin/lint-imports
run tests .venv/bin/pytest -q -m "not slow" --hypothesis-profile=quick "$@"
wait $types
report types $?
exit $failed
