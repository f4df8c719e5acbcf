#!/usr/bin/env bash
# Brings this checkout to a working state: system packages, uv, the environment, Spark's jars. Safe to run again.
# Never starts, stops or configures a service of the system: Manifold runs its own servers, on its own ports.
set -euo pipefail
cd "$(dirname "$0")/.."
. infra/packages.sh

say() { printf '\033[1m==> %s\033[0m\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

python=${PYTHON:-python3}
command -v "$python" >/dev/null || fail "$python is missing; install Python 3.11 or newer, or name one: make setup PYTHON=python3.12"
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' ||
  fail "$("$python" --version) is not supported; Manifold needs 3.11 to 3.13: make setup PYTHON=python3.12"

has_java() { command -v java >/dev/null && java -version 2>&1 | grep -qE 'version "(1[7-9]|2[0-9])'; }
PATH="$PATH:/usr/sbin:/usr/local/sbin"
missing=()
has_java || missing+=(openjdk-17-jre-headless)
command -v redis-server >/dev/null || missing+=(redis-server)
command -v mosquitto >/dev/null || missing+=(mosquitto)
command -v mosquitto_sub >/dev/null || missing+=(mosquitto-clients)
"$python" -c 'import ensurepip' 2>/dev/null || missing+=("python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv")

if [ ${#missing[@]} -gt 0 ]; then
  if can_install; then
    say "system packages: ${missing[*]}"
    install_packages "${missing[@]}" || fail "apt-get could not install ${missing[*]}; its own message is above"
  else
    fail "these are missing: ${missing[*]}
  Debian, Ubuntu:  sudo apt-get install ${missing[*]}
  macOS:           brew install openjdk@17 redis mosquitto   (the clients come with it)
then run make setup again"
  fi
fi

# For the AMQP door only; without it everything else works, and `make up` says what it leaves out.
if ! command -v rabbitmq-server >/dev/null && can_install; then
  say "rabbitmq-server"
  install_packages rabbitmq-server || say "without rabbitmq-server: the AMQP door is left out, and its tests are skipped"
fi

# For the tests in a real browser only; without it they are skipped, and say so.
if ! command -v chromium >/dev/null && can_install; then
  say "chromium"
  install_packages chromium || say "without chromium: the tests in a browser are skipped"
fi

mkdir -p .tools
if [ ! -x .tools/uv/bin/uv ]; then
  say "uv"
  awk '/^[^ ]/ { keep = /^uv==/ } keep' requirements.lock >.tools/uv.txt
  "$python" -m venv .tools/uv
  .tools/uv/bin/python -m pip install -q --disable-pip-version-check --require-hashes --no-deps -r .tools/uv.txt
fi
uv=$PWD/.tools/uv/bin/uv
# uv does not read pip's configuration; whoever has set an index there means it for this too.
index=${PIP_INDEX_URL:-$(.tools/uv/bin/python -m pip config get global.index-url 2>/dev/null || true)}
[ -z "$index" ] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}

say "environment (.venv)"
[ -x .venv/bin/python ] || "$uv" venv -q .venv --python "$python"
"$uv" pip sync -q --compile-bytecode requirements.lock
"$uv" pip install -q --no-deps --no-build-isolation -e .

say "Spark's jars (.tools/jars)"
.venv/bin/python -m pipelines.spark.jars
say "Spark's classes, kept for quicker starts (half a minute, once)"
.venv/bin/python -m pipelines.spark.cds_archive || say "without them: Spark only starts slower"

touch .tools/ready
