# Sourced by the set-up scripts: packages of the system, where this user may install some. Nothing that they bring is started.

can_install() { command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }; }

# Debian starts a packaged server as soon as it is installed; policy-rc.d is its way to say no. PostgreSQL also makes a cluster of its own.
install_packages() {
  local as_root=() policy=/usr/sbin/policy-rc.d clusters=/etc/postgresql-common/createcluster.conf ours=""
  [ "$(id -u)" = 0 ] || as_root=(sudo -n)
  if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee $policy >/dev/null && "${as_root[@]}" chmod +x $policy && ours=yes
  fi
  if [ ! -e $clusters ]; then
    "${as_root[@]}" mkdir -p "${clusters%/*}" && echo "create_main_cluster = false" | "${as_root[@]}" tee $clusters >/dev/null
  fi
  "${as_root[@]}" apt-get update -qq &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
      -o Dpkg::Options::=--force-confold "$@" >/dev/null </dev/null
  local result=$?
  [ -z "$ours" ] || "${as_root[@]}" rm -f $policy
  return $result
}
