locals {
  configuration = templatefile("${path.module}/manifests/prometheus.yml.tftpl", { site = var.site, alertmanager = var.observability.alertmanager })
  web           = yamlencode({ tls_server_config = { cert_file = "/etc/prometheus-tls/tls.crt", key_file = "/etc/prometheus-tls/tls.key" } })
  documents = [
    templatefile("${path.module}/manifests/prometheus.yaml.tftpl", {
      site  = var.site, observability = var.observability
      files = merge({ "prometheus.yml" = local.configuration, "web.yml" = local.web }, var.rules), checksum = sha256(jsonencode([local.configuration, var.rules]))
    }),
    templatefile("${path.module}/manifests/grafana.yaml.tftpl", {
      site = var.site, observability = var.observability, dashboards = var.dashboards, checksum = sha256(jsonencode(var.dashboards))
    }),
  ]
}

output "prometheus_url" {
  description = "Prometheus, inside the cluster."
  value       = "https://prometheus.${var.site.namespace}.svc:9090"
}

output "grafana_url" {
  description = "Grafana, inside the cluster."
  value       = "https://grafana.${var.site.namespace}.svc:3000"
}

output "prometheus_configuration" {
  description = "Prometheus' configuration."
  value       = local.configuration
}
