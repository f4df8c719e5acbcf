# One root for every environment: environments/<name>/terraform.tfvars holds all that differs.

locals {
  site = {
    namespace          = var.namespace
    environment        = var.environment
    storage_class      = var.storage_class
    image_pull_secrets = var.image_pull_secrets
    secrets            = var.secrets
    certificates       = var.certificates
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
  source     = "./modules/emqx"
  count      = var.emqx.in_cluster ? 1 : 0
  depends_on = [module.namespace]
  site       = local.site
  server     = var.emqx
  files      = { for name in ["manifold.conf", "acl.conf", "tls.conf", "ssl_dist.conf"] : name => file("${path.module}/../emqx/${name}") }
}

module "redis" {
  source     = "./modules/redis"
  count      = var.redis.in_cluster ? 1 : 0
  depends_on = [module.namespace]
  site       = local.site
  server     = var.redis
}

module "postgres" {
  source     = "./modules/postgres"
  count      = var.postgres.in_cluster ? 1 : 0
  depends_on = [module.namespace]
  site       = local.site
  server     = var.postgres
}

module "rabbitmq" {
  source     = "./modules/rabbitmq"
  count      = var.rabbitmq.enabled && var.rabbitmq.in_cluster ? 1 : 0
  depends_on = [module.namespace]
  site       = local.site
  server     = var.rabbitmq
}

module "object_store" {
  source     = "./modules/object_store"
  count      = var.object_store.in_cluster ? 1 : 0
  depends_on = [module.namespace]
  site       = local.site
  server     = var.object_store
}

module "manifold" {
  source           = "./modules/manifold"
  depends_on       = [module.namespace, module.emqx, module.redis, module.postgres, module.rabbitmq, module.object_store]
  site             = local.site
  image            = var.image
  settings         = local.settings
  recorders        = var.recorders
  dispatchers      = var.dispatchers
  api              = var.api
  campaigner       = var.campaigner
  signals          = merge(var.signals, { replicas = var.rabbitmq.enabled ? var.signals.replicas : 0 })
  store_in_cluster = var.object_store.in_cluster
}

module "airflow" {
  source           = "./modules/airflow"
  depends_on       = [module.namespace, module.postgres, module.manifold]
  site             = local.site
  image            = var.image
  airflow          = var.airflow
  spark            = var.spark
  store_in_cluster = var.object_store.in_cluster
}

module "observability" {
  source        = "./modules/observability"
  count         = var.observability.enabled ? 1 : 0
  depends_on    = [module.namespace]
  site          = local.site
  observability = var.observability
  rules         = { "manifold.yml" = file("${path.module}/../prometheus/rules/manifold.yml") }
  dashboards    = { for board in fileset("${path.module}/../grafana/dashboards", "*.json") : board => file("${path.module}/../grafana/dashboards/${board}") }
}
