locals {
  documents = [templatefile("${path.module}/manifests/emqx.yaml.tftpl", { site = var.site, server = var.server, files = var.files, checksum = sha256(jsonencode(var.files)) })]
}

output "mqtt_url" {
  description = "Where services find the broker: the listener with their limits."
  value       = "mqtts://emqx.${var.site.namespace}.svc:8884"
}

output "vehicle_url" {
  description = "Where vehicles find it, inside the cluster; from outside, at the Service emqx-vehicles."
  value       = "mqtts://emqx-vehicles.${var.site.namespace}.svc:8883"
}

output "api_url" {
  description = "EMQX's REST API."
  value       = "https://emqx.${var.site.namespace}.svc:18084/api/v5"
}
