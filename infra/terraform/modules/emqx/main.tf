locals {
  documents = [templatefile("${path.module}/manifests/emqx.yaml.tftpl", {
    site = var.site, server = var.server, replicas = var.replicas, secret = var.secret, service_type = var.service_type,
    tls  = var.tls_secret, files = var.files, checksum = sha256(jsonencode(var.files))
    port = var.tls_secret != "" ? 8883 : 1883
  })]
}

output "mqtt_url" {
  description = "Where services find the broker: the listener with their limits."
  value       = "mqtt://emqx.${var.site.namespace}.svc:1884"
}

output "vehicle_url" {
  description = "Where vehicles find it, inside the cluster; from outside, at the Service emqx-vehicles."
  value       = var.tls_secret != "" ? "mqtts://emqx-vehicles.${var.site.namespace}.svc:8883" : "mqtt://emqx-vehicles.${var.site.namespace}.svc:1883"
}

output "api_url" {
  description = "EMQX's REST API."
  value       = "http://emqx.${var.site.namespace}.svc:18083/api/v5"
}
