#!/usr/bin/env bash
# Fetches the servers on which the tests of object storage and other catalogs run: an S3 gateway, Iceberg's REST catalog, PostgreSQL,
# Spark's jars for them, the library with which PyIceberg signs requests; and Prometheus. What cannot be had is named, and its tests skip with that reason. Safe to run again; nothing is started.
set -uo pipefail
cd "$(dirname "$0")/../.."
. infra/packages.sh
tools=$PWD/.tools/stores
complete=.tools/stores.ready # only with all of it: what is missing is tried again the next time
mkdir -p "$tools"
rm -f $complete

lacking=0
lacks() {
  printf 'stores: without %s: %s\n' "$1" "$2"
  lacking=1
}

packages=()
command -v prometheus >/dev/null && command -v promtool >/dev/null || packages+=(prometheus)
[ -d "$tools/rest" ] || command -v mvn >/dev/null || packages+=(maven)
command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || packages+=(postgresql)
if [ ${#packages[@]} -gt 0 ]; then
  if can_install; then
    install_packages "${packages[@]}" || lacks "${packages[*]}" "apt-get could not install it; its own message is above"
  else
    lacks "${packages[*]}" "install it (Debian: sudo apt-get install ${packages[*]}), then run make stores"
  fi
fi

if [ ! -x "$tools/versitygw" ]; then
  if command -v go >/dev/null; then
    GOBIN=$tools go install github.com/versity/versitygw/cmd/versitygw@v1.8.0 ||
      lacks "object storage" "go could not build versitygw, which needs Go 1.25 (from 1.21 on, go fetches it by itself); then run make stores"
  else
    lacks "object storage" "Go is missing: install 1.21 or newer, then run make stores"
  fi
fi

if [ ! -d "$tools/rest" ]; then
  if command -v mvn >/dev/null; then
    mvn -q -B -f infra/stores/pom.xml dependency:copy-dependencies -DoutputDirectory="$tools/rest.part" &&
      mv "$tools/rest.part" "$tools/rest" || lacks "a REST catalog" "Maven could not fetch its jars; check the network, then run make stores"
  else
    lacks "a REST catalog" "Maven is missing"
  fi
fi

# Beside the environment, not in it: Manifold does not bring it, and it holds python-dateutil back.
if [ ! -d "$tools/boto3" ]; then
  .venv/bin/uv pip install -q --python .venv/bin/python --no-deps --require-hashes --target "$tools/boto3.part" -r infra/stores/requirements.txt &&
    mv "$tools/boto3.part" "$tools/boto3" || lacks "signatures" "boto3 could not be fetched; the reason is above"
fi

.venv/bin/python -m pipelines.spark.jars --all || lacks "Spark's jars for S3 and PostgreSQL" "they could not be fetched; the reason is above"

[ $lacking = 1 ] || touch $complete
