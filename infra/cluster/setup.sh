#!/usr/bin/env bash
# Builds what `make cluster` runs, into .tools/cluster: Kubernetes' servers and kubectl, KWOK, Terraform's provider; and fetches etcd.
# Ten minutes of one core, 0.6 GB, and 6 GB of Go's caches, once. Nothing is started. What cannot be had is named. Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/../.."
. infra/packages.sh
tools=$PWD/.tools/cluster
provider=github.com/gavinbunney/terraform-provider-kubectl@v1.19.0
kwok=sigs.k8s.io/kwok/cmd/kwok@v0.7.0
mkdir -p "$tools"

fail() { printf 'cluster: %s\n' "$*" >&2; exit 1; }
command -v terraform >/dev/null || fail "Terraform 1.10 or newer is missing: developer.hashicorp.com/terraform/install"
command -v go >/dev/null || fail "Go is missing: install 1.21 or newer (from there on it fetches what it needs by itself)"

if [ ! -x "$tools/terraform-provider-kubectl" ]; then
  echo "==> Terraform's provider for Kubernetes' objects"
  GOBIN=$tools nice go install $provider || fail "go could not build $provider; its own message is above"
fi
if [ ! -x "$tools/kwok" ]; then
  echo "==> kwok"
  GOBIN=$tools nice go install -ldflags "-s -w" $kwok || fail "go could not build $kwok; its own message is above"
fi
[ -x "$tools/kubectl" ] || ! command -v kubectl >/dev/null || ln -sf "$(command -v kubectl)" "$tools/kubectl"
for program in kube-apiserver kube-controller-manager kube-scheduler kubectl; do
  if [ ! -x "$tools/$program" ]; then
    echo "==> $program"
    (cd infra/cluster && nice go build -ldflags "-s -w" -o "$tools/$program.part" "k8s.io/kubernetes/cmd/$program") || fail "go could not build $program; its own message is above"
    mv "$tools/$program.part" "$tools/$program"
  fi
done
if [ ! -x "$tools/etcd" ]; then
  if command -v etcd >/dev/null; then
    ln -sf "$(command -v etcd)" "$tools/etcd"
  elif command -v apt-get >/dev/null; then # unpacked and not installed: Debian's package would start a server
    (cd "$tools" && apt-get download -q etcd-server && dpkg-deb -x etcd-server_*.deb unpacked && cp unpacked/usr/bin/etcd . && rm -rf unpacked etcd-server_*.deb) ||
      fail "apt-get could not fetch etcd-server; its own message is above"
  else
    fail "etcd is missing: install it, then run make cluster again"
  fi
fi
