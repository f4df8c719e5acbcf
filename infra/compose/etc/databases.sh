# Runs once, on an empty volume: a database and a user of its own for Airflow and for the catalog.
set -eu
for name in airflow catalog; do
  psql -v ON_ERROR_STOP=1 -v user="$name" -v password="$(cat "/run/secrets/postgres-$name-password")" --username postgres <<'SQL'
CREATE ROLE :"user" LOGIN PASSWORD :'password';
CREATE DATABASE :"user" OWNER :"user";
REVOKE ALL ON DATABASE :"user" FROM PUBLIC;
SQL
done
