#!/usr/bin/env bash
# Fetches the servers on which the tests of object storage and other catalogs run: an S3 gateway, Iceberg's REST catalog, PostgreSQL.
# Each is optional: what cannot be fetched is named, and its tests skip with that reason. Nothing is started.
set -uo pipefail
cd "$(dirname "$0")/../.."
tools=$PWD/.tools/stores
mkdir -p "$tools"

lacks() { printf 'stores: without %s: %s\n' "$1" "$2"; }

if [ ! -x "$tools/versitygw" ]; then
  if command -v go >/dev/null; then
    GOBIN=$tools go install github.com/versity/versitygw/cmd/versitygw@v1.8.0 || lacks "object storage" "go could not build versitygw"
  else
    lacks "object storage" "Go is missing (Debian: apt-get install golang-go)"
  fi
fi

if [ ! -d "$tools/rest" ]; then
  if command -v mvn >/dev/null; then
    mvn -q -B -f infra/stores/pom.xml dependency:copy-dependencies -DoutputDirectory="$tools/rest.part" &&
      mv "$tools/rest.part" "$tools/rest" || lacks "a REST catalog" "Maven could not fetch its jars"
  else
    lacks "a REST catalog" "Maven is missing (Debian: apt-get install maven)"
  fi
fi

if ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then
  if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    # Debian would make and start a cluster of its own.
    mkdir -p /etc/postgresql-common
    [ -e /etc/postgresql-common/createcluster.conf ] || echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o Dpkg::Options::=--force-confold postgresql \
      >/dev/null </dev/null || lacks PostgreSQL "apt-get could not install it"
  else
    lacks PostgreSQL "it is missing (Debian: apt-get install postgresql)"
  fi
fi

.venv/bin/python -m pipelines.spark.jars --all || lacks "Spark's jars for them" "they could not be fetched"
