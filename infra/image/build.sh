#!/usr/bin/env bash
# Builds the image with Buildah and without a registry: its base is made from Debian's packages, under the name that the Dockerfile asks for.
# Some minutes once; a change of the source takes seconds. MANIFOLD_IMAGE names the result (localhost/manifold:dev). Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/../.."
. infra/packages.sh
image=${MANIFOLD_IMAGE:-localhost/manifold:dev}
export CONTAINERS_CONF=${CONTAINERS_CONF:-$PWD/infra/image/containers.conf}

say() { printf '\033[1m==> %s\033[0m\n' "$*"; }
fail() { printf 'image: %s\n' "$*" >&2; exit 1; }

packages=(buildah podman runc catatonit mmdebstrap netavark)
missing=()
for package in "${packages[@]}"; do dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package"); done
if [ ${#missing[@]} -gt 0 ]; then
  can_install || fail "these are missing: ${missing[*]} (Debian: sudo apt-get install ${missing[*]})"
  say "system packages: ${missing[*]}"
  install_packages "${missing[@]}" || fail "apt-get could not install ${missing[*]}; its own message is above"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
base=$(sed -n 's/^ARG BASE=//p' infra/image/Dockerfile)
if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
  say "$base, from Debian's packages"
  apt-config dump | grep -E '^Acquire::(Check-|Retries|ForceIPv)' >"$work/apt.conf" || true # as this machine asks Debian; no proxy, which may have a password
  mmdebstrap --quiet --variant=minbase --include=ca-certificates --aptopt="$work/apt.conf" \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    bookworm "$work/base.tar"
  podman import --quiet "$work/base.tar" "$base" >/dev/null
fi

# What this machine needs in order to reach its registries goes in as secrets: no layer keeps it.
secrets=()
ca=${PIP_CERT:-${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}}
[ ! -s "$ca" ] || secrets+=(--secret "id=ca,src=$ca")
index=${PIP_INDEX_URL:-$(.venv/bin/python -m pip config get global.index-url 2>/dev/null || .tools/uv/bin/python -m pip config get global.index-url 2>/dev/null || true)}
printf '[global]\n' >"$work/pip"
[ -z "$index" ] || printf 'index-url = %s\n' "$index" >>"$work/pip"
secrets+=(--secret "id=pip,src=$work/pip")
arguments=(--build-arg "VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)" --build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || echo unknown)")
maven=$(SPARK_LOCAL_IP=127.0.0.1 .venv/bin/python infra/image/repository.py 2>"$work/spark") || { cat "$work/spark" >&2; fail "Spark names no Maven repository"; }
arguments+=(--build-arg "MAVEN=$maven")

say "$image"
buildah bud --quiet --layers --format docker --network host --pull-never --ignorefile infra/image/Dockerfile.dockerignore \
  "${secrets[@]}" "${arguments[@]}" --tag "$image" --file infra/image/Dockerfile . >/dev/null
podman image inspect --format '{{.Id}} {{.Size}} bytes, {{len .RootFS.Layers}} layers' "$image"
