output "mqtt" {
  description = "Where vehicles, and where services and publishers, find the broker; from outside the cluster, the address of the Service emqx-vehicles."
  value       = { vehicles = local.vehicle_url, services = local.mqtt_url }
}

output "api" {
  description = "The API, inside the cluster."
  value       = module.manifold.api_url
}

output "airflow" {
  description = "Airflow's pages, inside the cluster."
  value       = module.airflow.url
}

output "log_in" {
  description = "What to type to get to each page from here, and to its password."
  value = merge({
    airflow = "kubectl -n ${var.namespace} port-forward svc/airflow 8080 (https://127.0.0.1:8080, user admin; its password: kubectl -n ${var.namespace} get secret ${var.secrets.airflow} -o jsonpath='{.data.passwords\\.json}' | base64 -d)"
    api     = "kubectl -n ${var.namespace} port-forward svc/api 9104 (https://127.0.0.1:9104/api/v1; token: kubectl -n ${var.namespace} get secret ${var.secrets.manifold} -o jsonpath='{.data.http-token}' | base64 -d)"
    }, var.observability.enabled ? {
    grafana = "kubectl -n ${var.namespace} port-forward svc/grafana 3000 (https://127.0.0.1:3000, user admin; its password: kubectl -n ${var.namespace} get secret ${var.secrets.grafana} -o jsonpath='{.data.admin-password}' | base64 -d)"
  } : {})
}

output "settings" {
  description = "Every setting of Manifold that is given, but for the secret ones."
  value       = module.manifold.settings
}

output "manifests" {
  description = "The YAML of every object, by kind and name."
  value = merge(
    module.namespace.manifests,
    module.manifold.manifests,
    module.airflow.manifests,
    [for made in concat(module.emqx, module.redis, module.postgres, module.rabbitmq, module.object_store, module.observability) : made.manifests]...
  )
}

output "files" {
  description = "What is mounted: Spark's defaults and templates, and Prometheus' configuration."
  value       = merge(module.airflow.spark_files, { for seen in module.observability : "prometheus" => seen.prometheus_configuration })
}
