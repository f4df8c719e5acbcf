#!/usr/bin/env bash
# certificates.sh NAMESPACE [HOST…]       makes the certificates of an environment, each in a Secret with tls.crt, tls.key and ca.crt, and
#                                         renews what ends within 30 days or is of a former authority. HOSTs: names under which vehicles and gateways come from outside;
#                                         a certificate keeps those that it has, until its Secret is deleted.
# certificates.sh NAMESPACE --vehicle ID  writes a vehicle's certificate, its key and whom it may believe to standard output; DAYS=30
# certificates.sh NAMESPACE --client NAME the same for a publisher (sdv-pub-…), sdv-listener, sdv-campaigns, or a gateway or reader of RabbitMQ.
# Two authorities, with their keys, are the Secrets `ca` (whoever is inside, and publishers) and `vehicle-ca` of the namespace NAMESPACE-ca, in
# which nothing runs: Airflow's tasks may make pods in NAMESPACE, and so may mount what is there. An authority signs by tls.crt and tls.key;
# its ca.crt has all who are believed, its successor or predecessor among them, and becomes that of each certificate. No key is in a command line or a file here.
set -euo pipefail
ns=${1:?usage: certificates.sh NAMESPACE [HOST… | --vehicle ID | --client NAME]}
shift
ca_days=3650 leaf_days=90 renewed_days=30

home() { case $1 in ca | vehicle-ca) echo "$ns-ca" ;; *) echo "$ns" ;; esac; }

# get SECRET KEY: its content, or nothing where there is no such Secret; where the cluster does not answer, this ends here
get() { kubectl -n "$(home "$1")" get secret "$1" --ignore-not-found -o "jsonpath={.data['${2/./\\.}']}" | base64 -d; }

# put VERB SECRET CERTIFICATE KEY CA: `create` one, which fails where another run has made it meanwhile, or `replace` the one that is there
put() {
  printf '%s\0%s\0%s' "$3" "$4" "$5" | python3 -c '
import json, sys
values = dict(zip(("tls.crt", "tls.key", "ca.crt"), (each.rstrip() + "\n" for each in sys.stdin.read().split("\0"))))
print(json.dumps({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "stringData": values,
                  "metadata": {"name": sys.argv[1], "namespace": sys.argv[2]}}))' "$2" "$(home "$2")" | kubectl "$1" -f - >/dev/null
}

new_key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 2>/dev/null; }

# authority SECRET NAME: where there is none
authority() {
  local key certificate
  certificate=$(get "$1" tls.crt)
  [ -z "$certificate" ] || return 0
  key=$(new_key)
  certificate=$(openssl req -x509 -new -key <(printf %s "$key") -subj "/CN=$2" -days $ca_days \
    -addext basicConstraints=critical,CA:true,pathlen:0 -addext keyUsage=critical,keyCertSign,cRLSign)
  put create "$1" "$certificate" "$key" "$certificate"
  echo "$1: $2"
}

# signed CA NAME USAGE DAYS [HOST…]: sets certificate, key and ca
signed() {
  local usage=$3 days=$4 name=$2 signer ca_key extensions
  ca=$(get "$1" ca.crt)
  signer=$(get "$1" tls.crt)
  ca_key=$(get "$1" tls.key)
  [ -n "$ca_key" ] || { echo "there is no authority $1 in $ns-ca: run $0 $ns" >&2; exit 1; }
  key=$(new_key)
  shift 4
  extensions=$(printf 'basicConstraints=critical,CA:false\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=%s\nauthorityKeyIdentifier=keyid\n' "$usage")
  [ $# = 0 ] || extensions+=$'\nsubjectAltName='$(for host; do case $host in *[!0-9.]*) printf 'DNS:%s,' "$host" ;; *) printf 'IP:%s,' "$host" ;; esac done | sed 's/,$//')
  certificate=$(openssl req -new -key <(printf %s "$key") -subj "/CN=$name" |
    openssl x509 -req -days "$days" -set_serial "0x$(openssl rand -hex 16)" -CA <(printf %s "$signer") -CAkey <(printf %s "$ca_key") \
      -extfile <(printf %s "$extensions") 2>/dev/null)
}

# hosts_of CERTIFICATE: the names in it, a line each
hosts_of() { openssl x509 -noout -ext subjectAltName <<<"$1" | tr , '\n' | sed -n 's/^ *DNS://p; s/^ *IP Address://p'; }

# holds CERTIFICATE CA: whether it is good for a while, and signed by whom the authority is now
holds() {
  openssl x509 -noout -checkend $((renewed_days * 86400)) <<<"$1" >/dev/null 2>&1 &&
    openssl verify -CAfile <(get "$2" tls.crt) <(printf %s "$1") >/dev/null 2>&1
}

# leaf SECRET CA NAME USAGE HOST…: where there is none, or it does not hold, or it lacks a name; or only whom it believes
leaf() {
  local secret=$1 authority=$2 name=$3 usage=$4 verb=create there='' host lacks='' hosts
  shift 4
  certificate=$(get "$secret" tls.crt)
  if [ -n "$certificate" ]; then
    verb=replace
    there=$(hosts_of "$certificate" 2>/dev/null) || there=''
    for host; do grep -qxF -e "$host" <<<"$there" || lacks=$host; done
    if [ -z "$lacks" ] && holds "$certificate" "$authority"; then
      ca=$(get "$authority" ca.crt)
      [ "$(get "$secret" ca.crt)" != "$ca" ] || return 0
      key=$(get "$secret" tls.key)
      put replace "$secret" "$certificate" "$key" "$ca"
      echo "$secret: whom it believes"
      return 0
    fi
  fi
  mapfile -t hosts < <(printf '%s\n' "$@" "$there" | sed '/^$/d' | sort -u)
  signed "$authority" "$name" "$usage" $leaf_days "${hosts[@]}"
  put $verb "$secret" "$certificate" "$key" "$ca"
  echo "$secret: $name"
}

case ${1:-} in
--vehicle | --client)
  name=${2:?which name?}
  [[ $name =~ ^[A-Za-z0-9._@-]{1,64}$ ]] || { echo "a common name has 1 to 64 letters, digits and . _ @ -" >&2; exit 1; }
  case $1:$name in
  --vehicle:sdv-*) echo "a vehicle's name does not begin with sdv-: services' do" >&2; exit 1 ;;
  --client:sdv-pub-?* | --client:sdv-listener | --client:sdv-campaigns) ;;
  --client:sdv-*) echo "$name is a service, whose certificate is in its Secret" >&2; exit 1 ;;
  esac
  from=ca
  [ "$1" = --client ] || from=vehicle-ca
  signed $from "$name" clientAuth "${DAYS:-30}"
  printf '%s\n%s\n%s\n' "$certificate" "$key" "$ca"
  exit
  ;;
-*) echo "usage: $0 NAMESPACE [HOST… | --vehicle ID | --client NAME]" >&2; exit 1 ;;
esac

for namespace in "$ns" "$ns-ca"; do kubectl get namespace "$namespace" >/dev/null 2>&1 || kubectl create namespace "$namespace" >/dev/null; done
authority ca "Manifold's services"
authority vehicle-ca "Manifold's vehicles"
both=serverAuth,clientAuth here=(localhost 127.0.0.1)
for service in recorder dispatcher signals api; do
  leaf $service-tls ca sdv-$service $both "manifold.$ns.svc" "$service.$ns.svc" "*.$service.$ns.svc" "${here[@]}"
done
leaf campaigner-tls ca sdv-campaigns $both "manifold.$ns.svc" "campaigner.$ns.svc" "${here[@]}"
leaf airflow-tls ca sdv-airflow $both "airflow.$ns.svc" "${here[@]}"
leaf emqx-tls ca "emqx.$ns.svc" $both "emqx.$ns.svc" $(printf "emqx-%d.emqx-nodes.$ns.svc.cluster.local " {0..15}) "${here[@]}"
leaf emqx-vehicles-tls vehicle-ca "emqx-vehicles.$ns.svc" serverAuth "emqx-vehicles.$ns.svc" "${here[@]}" "$@"
leaf rabbitmq-tls ca "rabbitmq.$ns.svc" serverAuth "rabbitmq.$ns.svc" "${here[@]}" "$@"
for server in redis postgres object-store prometheus grafana; do
  leaf $server-tls ca "$server.$ns.svc" serverAuth "$server.$ns.svc" "${here[@]}"
done
