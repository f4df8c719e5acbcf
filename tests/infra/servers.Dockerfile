# Servers of Debian's packages and the S3 gateway that tests use, where the images of compose.yml cannot be had: same users, same folders.
ARG BASE
FROM ${BASE}
RUN groupadd --gid 999 server && useradd --uid 999 --gid 999 --home-dir /data --no-create-home server \
 && printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d && chmod +x /usr/sbin/policy-rc.d \
 && mkdir -p /etc/postgresql-common && echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf \
 && apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server postgresql rabbitmq-server mosquitto wget >/dev/null \
 && rm -rf /var/lib/apt/lists/* \
 && ln -s /usr/lib/postgresql/*/bin/* /usr/local/bin/ 2>/dev/null; \
    install -d -o 999 -g 999 /data /var/lib/postgresql/data /var/run/postgresql && chmod 700 /var/lib/postgresql/data \
 && chmod 1777 /var/run/postgresql
# That mode because runc gives a tmpfs the mode of the folder below it, and root as its owner.
COPY versitygw /usr/local/bin/versitygw
