#!/usr/bin/env bash
# secrets.sh NAMESPACE: makes up the Secrets of an environment whose services are all in the cluster, and the namespace where it is missing.
# Their addresses are of TLS: certificates.sh makes the certificates, which lie in each pod at the same place. What exists is left alone. Nothing secret is in a command line or a file of this machine: all goes to kubectl through a pipe.
set -euo pipefail
ns=${1:?usage: secrets.sh NAMESPACE}
rabbitmq=$(cd "$(dirname "$0")/../rabbitmq" && pwd) redis=$(cd "$(dirname "$0")/../redis" && pwd)
new() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
there() { kubectl -n "$ns" get secret "$1" >/dev/null 2>&1; }

kubectl get namespace "$ns" >/dev/null 2>&1 || kubectl create namespace "$ns"

# put NAME: keys and values from stdin, as lines "key<TAB>JSON string"
put() {
  python3 -c '
import json, sys
data = dict(line.rstrip("\n").split("\t", 1) for line in sys.stdin)
print(json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": sys.argv[1], "namespace": sys.argv[2]},
                  "stringData": {key: json.loads(value) for key, value in data.items()}}))' "$1" "$ns" | kubectl create -f -
}
line() { printf '%s\t%s\n' "$1" "$(python3 -c 'import json, sys; print(json.dumps(sys.stdin.read()))')"; }

names=(manifold airflow emqx redis postgres rabbitmq object-store grafana)
missing=()
for name in "${names[@]}"; do there "$name" || missing+=("$name"); done
if [ ${#missing[@]} = 0 ]; then
  echo "all there in $ns: ${names[*]}"
  exit 0
fi
if [ ${#missing[@]} != ${#names[@]} ]; then
  echo "some are there and some are not (${missing[*]}): they share passwords, so make those by hand, or delete all and start again" >&2
  exit 1
fi

tls=/etc/manifold-tls of_postgres="sslmode=verify-full&sslrootcert=$tls/ca.crt"
of_redis_url="ssl_ca_certs=$tls/ca.crt&ssl_certfile=$tls/tls.crt&ssl_keyfile=$tls/tls.key" of_amqp="cafile=$tls/ca.crt&certfile=$tls/tls.crt&keyfile=$tls/tls.key"
catalog=$(new) airflow=$(new) access=$(new) secret=$(new) token=$(new) emqx=$(new) door=$(new) operator=$(new) hmac=$(new) delegate=$(new)
ring=$(python3 -c 'import base64, os; print("k1:" + base64.b64encode(os.urandom(32)).decode(), end="")')
declare -A of_redis
for service in recorder dispatcher campaigner signals api jobs; do of_redis[$service]=$(new); done
for service in "${!of_redis[@]}"; do printf '%s %s\n' "$service" "${of_redis[$service]}"; done | python3 "$redis/users.py" | line users.acl | put redis
{ new | line password; printf %s "$catalog" | line catalog-password; printf %s "$airflow" | line airflow-password; } | put postgres
{ printf %s "$access" | line access-key; printf %s "$secret" | line secret-key; } | put object-store
{ new | line cookie; new | line dashboard-password; printf 'manifold:%s\n' "$emqx" | line api-keys; } | put emqx
{
  printf 'postgresql+psycopg://airflow:%s@postgres.%s.svc:5432/airflow?%s' "$airflow" "$ns" "$of_postgres" | line sql-alchemy-conn
  python3 -c 'import base64, os; print(base64.urlsafe_b64encode(os.urandom(32)).decode(), end="")' | line fernet-key
  new | line api-secret-key
  new | line jwt-secret
  printf '{"admin": "%s", "operator": "%s", "viewer": "%s"}' "$(new)" "$(new)" "$(new)" | line passwords.json
} | put airflow
printf '%s %s\n' door "$door" operator "$operator" gateway "$(new)" reader "$(new)" | python3 "$rabbitmq/users.py" | line definitions.json | put rabbitmq
new | line admin-password | put grafana

settings() { # SERVICE: what it must know and nobody else may
  printf 'http_token = "%s"\nredis_url = "rediss://%s:%s@redis.%s.svc:6379/0?%s"\n' "$token" "$1" "${of_redis[$1]}" "$ns" "$of_redis_url"
  printf 'catalog_uri = "postgresql+psycopg://catalog:%s@postgres.%s.svc:5432/catalog?%s"\n' "$catalog" "$ns" "$of_postgres"
  printf 's3_access_key = "%s"\ns3_secret_key = "%s"\n' "$access" "$secret"
}
{
  for service in recorder campaigner; do settings $service | line $service.toml; done
  { settings api; printf 'signals_keys = "%s"\napi_tokens_file = "/etc/manifold/api-tokens"\n' "$ring"; } | line api.toml
  { settings jobs; printf 'signals_keys = "%s"\napi_token = "%s"\n' "$ring" "$delegate"; } | line jobs.toml
  printf 'airflow:%s:read,approve,brake,delegate\n' "$(printf %s "$delegate" | python3 -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())')" | line api-tokens
  {
    settings signals
    printf 'signals_keys = "%s"\nsignals_hmac_secret = "%s"\n' "$ring" "$hmac"
    printf 'signals_amqp_url = "amqps://door:%s@rabbitmq.%s.svc:5671/?%s"\n' "$door" "$ns" "$of_amqp"
    printf 'signals_operator_url = "amqps://operator:%s@rabbitmq.%s.svc:5671/?%s"\n' "$operator" "$ns" "$of_amqp"
  } | line signals.toml
  { settings dispatcher; printf 'emqx_api_key = "manifold"\nemqx_api_secret = "%s"\n' "$emqx"; } | line dispatcher.toml
  printf %s "$token" | line http-token
} | put manifold
