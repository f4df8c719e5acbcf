#!/usr/bin/env bash
# Makes up every secret of compose.yml, once, into secrets/ beside it: only its owner may enter that folder. What is there is left alone.
# The files themselves may be read by the users that they are mounted for, who are not its owner.
set -euo pipefail
cd "$(dirname "$0")"
rabbitmq=$(cd ../rabbitmq && pwd) redis=$(cd ../redis && pwd)
folder=${1:-secrets}
[ ! -e "$folder" ] || { echo "$folder is there; remove it (and the volumes, which know its passwords) to start again"; exit 0; }
new() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
mkdir -m 700 "$folder.part"
cd "$folder.part"

catalog=$(new) airflow=$(new) access=$(new) secret=$(new) token=$(new) emqx=$(new) door=$(new) operator=$(new) delegate=$(new)
ring=$(python3 -c 'import base64, os; print("k1:" + base64.b64encode(os.urandom(32)).decode(), end="")')
declare -A of_redis
for service in recorder dispatcher campaigner signals api jobs; do of_redis[$service]=$(new); done
for service in "${!of_redis[@]}"; do printf '%s %s\n' "$service" "${of_redis[$service]}"; done | python3 "$redis/users.py" >redis-users.acl
new >postgres-password
printf %s "$catalog" >postgres-catalog-password
printf %s "$airflow" >postgres-airflow-password
printf %s "$access" >s3-access-key
printf %s "$secret" >s3-secret-key
printf %s "$token" >http-token
printf 'airflow:%s:read,approve,brake,delegate\n' "$(printf %s "$delegate" | python3 -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())')" >api-tokens
printf 'manifold:%s\n' "$emqx" >emqx-api-keys
printf 'postgresql+psycopg://airflow:%s@postgres:5432/airflow' "$airflow" >sql-alchemy-conn
python3 -c 'import base64, os; print(base64.urlsafe_b64encode(os.urandom(32)).decode(), end="")' >fernet-key
new >api-secret-key
new >jwt-secret
new >grafana-password
printf '{"admin": "%s", "operator": "%s", "viewer": "%s"}' "$(new)" "$(new)" "$(new)" >passwords.json
printf '%s %s\n' door "$door" operator "$operator" gateway "$(new)" reader "$(new)" | python3 "$rabbitmq/users.py" >rabbitmq-definitions.json
for service in recorder dispatcher campaigner signals api jobs; do
  printf 'http_token = "%s"\nredis_url = "redis://%s:%s@redis:6379/0"\ncatalog_uri = "postgresql+psycopg://catalog:%s@postgres:5432/catalog"\ns3_access_key = "%s"\ns3_secret_key = "%s"\n' \
    "$token" $service "${of_redis[$service]}" "$catalog" "$access" "$secret" >$service.toml
done
printf 'emqx_api_key = "manifold"\nemqx_api_secret = "%s"\n' "$emqx" >>dispatcher.toml
for service in signals api jobs; do printf 'signals_keys = "%s"\n' "$ring" >>$service.toml; done
printf 'api_tokens_file = "/run/secrets/api-tokens"\n' >>api.toml
printf 'api_token = "%s"\n' "$delegate" >>jobs.toml
printf 'signals_hmac_secret = "%s"\nsignals_amqp_url = "amqp://door:%s@rabbitmq:5672/"\nsignals_operator_url = "amqp://operator:%s@rabbitmq:5672/"\n' "$(new)" "$door" "$operator" >>signals.toml
printf 'EMQX_NODE__COOKIE=%s\nEMQX_DASHBOARD__DEFAULT_PASSWORD=%s\n' "$(new)" "$(new)" >emqx.env
chmod 444 ./*
cd ..
mv "$folder.part" "$folder"
echo "made up in $folder: Airflow's passwords are in passwords.json, Grafana's in grafana-password"
