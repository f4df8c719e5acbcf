locals {
  recorder_urls = join(",", [for n in range(var.recorders.replicas) : "http://recorder-${n}.recorder.${var.site.namespace}.svc:9101"])
  settings = merge({
    home          = "/var/lib/manifold"
    host          = "0.0.0.0"
    log_format    = "json"
    mqtt_shared   = "on"
    recorder_urls = local.recorder_urls
    dispatchers   = tostring(var.dispatchers.replicas)
    api_url       = "http://api.${var.site.namespace}.svc:9104"
    with_airflow  = "false"
    with_signals  = tostring(var.signals.replicas > 0)
  }, var.settings)
  environment = { for name, value in local.settings : "MANIFOLD_${upper(name)}" => value }
  given = {
    site = var.site, image = var.image, secret = var.secret, checksum = sha256(jsonencode(local.environment))
  }
  documents = concat([
    templatefile("${path.module}/manifests/settings.yaml.tftpl", merge(local.given, { environment = local.environment })),
    templatefile("${path.module}/manifests/recorder.yaml.tftpl", merge(local.given, { service = var.recorders })),
    templatefile("${path.module}/manifests/dispatcher.yaml.tftpl", merge(local.given, { service = var.dispatchers })),
    templatefile("${path.module}/manifests/api.yaml.tftpl", merge(local.given, { service = var.api })),
    ], var.signals.replicas == 0 ? [] : [
    templatefile("${path.module}/manifests/signals.yaml.tftpl", merge(local.given, { service = var.signals })),
  ])
}

output "api_url" {
  description = "The API, inside the cluster."
  value       = "http://api.${var.site.namespace}.svc:9104"
}

output "settings" {
  description = "Every setting that is given, but for the secret ones."
  value       = local.settings
}
