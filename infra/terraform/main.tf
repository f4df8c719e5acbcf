# One root for every environment: environments/<name>/terraform.tfvars holds all that differs.

locals {
  site = {
    namespace          = var.namespace
    environment        = var.environment
    storage_class      = var.storage_class
    image_pull_secrets = var.image_pull_secrets
    zones              = var.zones
    wait_for_rollout   = var.wait_for_rollout
    kubectl            = "--kubeconfig='${pathexpand(var.kubeconfig)}'${var.kube_context == null ? "" : " --context='${var.kube_context}'"}"
  }

  mqtt_url    = var.emqx.in_cluster ? module.emqx[0].mqtt_url : var.emqx.mqtt_url
  vehicle_url = var.emqx.in_cluster ? module.emqx[0].vehicle_url : coalesce(var.emqx.vehicle_url, var.emqx.mqtt_url)
  emqx_api    = var.emqx.in_cluster ? module.emqx[0].api_url : var.emqx.api_url
  s3_endpoint = var.object_store.in_cluster ? "https://object-store.${var.namespace}.svc:7070" : var.object_store.endpoint

  settings = merge({
    mqtt_url         = local.mqtt_url
    mqtt_vehicle_url = local.vehicle_url
    emqx_api_url     = local.emqx_api
    s3_endpoint      = local.s3_endpoint
    s3_region        = var.object_store.region
    archive_url      = "s3://${var.object_store.bucket}/archive"
    warehouse        = "s3://${var.object_store.bucket}/warehouse"
    reports          = "s3://${var.object_store.bucket}/reports"
  }, var.settings)
}

module "namespace" {
  source       = "./modules/namespace"
  site         = local.site
  egress_cidrs = var.egress_cidrs
}

module "emqx" {
  source       = "./modules/emqx"
  count        = var.emqx.in_cluster ? 1 : 0
  depends_on   = [module.namespace]
  site         = local.site
  server       = { image = var.emqx.image, volume = var.emqx.volume, cpu = var.emqx.cpu, memory = var.emqx.memory }
  replicas     = var.emqx.replicas
  secret       = var.secrets.emqx
  service_type = var.emqx.service_type
  certificates = { vehicles = var.certificates.emqx_vehicles, services = var.certificates.emqx }
  files        = { for name in ["manifold.conf", "acl.conf", "tls.conf", "ssl_dist.conf"] : name => file("${path.module}/../emqx/${name}") }
}

module "redis" {
  source      = "./modules/redis"
  count       = var.redis.in_cluster ? 1 : 0
  depends_on  = [module.namespace]
  site        = local.site
  server      = { image = var.redis.image, volume = var.redis.volume, cpu = var.redis.cpu, memory = var.redis.memory }
  secret      = var.secrets.redis
  certificate = var.certificates.redis
}

module "postgres" {
  source      = "./modules/postgres"
  count       = var.postgres.in_cluster ? 1 : 0
  depends_on  = [module.namespace]
  site        = local.site
  server      = { image = var.postgres.image, volume = var.postgres.volume, cpu = var.postgres.cpu, memory = var.postgres.memory }
  secret      = var.secrets.postgres
  certificate = var.certificates.postgres
}

module "rabbitmq" {
  source      = "./modules/rabbitmq"
  count       = var.rabbitmq.enabled && var.rabbitmq.in_cluster ? 1 : 0
  depends_on  = [module.namespace]
  site        = local.site
  server      = { image = var.rabbitmq.image, volume = var.rabbitmq.volume, cpu = var.rabbitmq.cpu, memory = var.rabbitmq.memory }
  secret      = var.secrets.rabbitmq
  certificate = var.certificates.rabbitmq
}

module "object_store" {
  source      = "./modules/object_store"
  count       = var.object_store.in_cluster ? 1 : 0
  depends_on  = [module.namespace]
  site        = local.site
  server      = { image = var.object_store.image, volume = var.object_store.volume, cpu = var.object_store.cpu, memory = var.object_store.memory }
  secret      = var.secrets.object_store
  certificate = var.certificates.object_store
  region      = var.object_store.region
  bucket      = var.object_store.bucket
}

module "manifold" {
  source           = "./modules/manifold"
  depends_on       = [module.namespace, module.emqx, module.redis, module.postgres, module.rabbitmq, module.object_store]
  site             = local.site
  image            = var.image
  secret           = var.secrets.manifold
  settings         = local.settings
  recorders        = var.recorders
  dispatchers      = var.dispatchers
  api              = var.api
  signals          = merge(var.signals, { replicas = var.rabbitmq.enabled ? var.signals.replicas : 0 })
  certificates     = { for service in ["recorder", "dispatcher", "signals", "api"] : service => var.certificates[service] }
  store_in_cluster = var.object_store.in_cluster
}

module "airflow" {
  source           = "./modules/airflow"
  depends_on       = [module.namespace, module.postgres, module.manifold]
  site             = local.site
  image            = var.image
  airflow          = var.airflow
  spark            = var.spark
  secret           = var.secrets.airflow
  certificate      = var.certificates.airflow
  manifold_secret  = var.secrets.manifold
  store_in_cluster = var.object_store.in_cluster
}

module "observability" {
  source          = "./modules/observability"
  count           = var.observability.enabled ? 1 : 0
  depends_on      = [module.namespace]
  site            = local.site
  observability   = var.observability
  manifold_secret = var.secrets.manifold
  grafana_secret  = var.secrets.grafana
  certificates    = { prometheus = var.certificates.prometheus, grafana = var.certificates.grafana }
  rules           = { "manifold.yml" = file("${path.module}/../prometheus/rules/manifold.yml") }
  dashboards      = { for board in fileset("${path.module}/../grafana/dashboards", "*.json") : board => file("${path.module}/../grafana/dashboards/${board}") }
}
