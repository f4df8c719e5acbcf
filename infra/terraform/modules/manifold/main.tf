locals {
  recorder_urls = join(",", [for n in range(var.recorders.replicas) : "https://recorder-${n}.recorder.${var.site.namespace}.svc:9101"])
  settings = merge({
    home          = "/var/lib/manifold"
    host          = "0.0.0.0"
    log_format    = "json"
    mqtt_shared   = "on"
    recorder_urls = local.recorder_urls
    dispatchers   = tostring(var.dispatchers.replicas)
    api_url       = "https://api.${var.site.namespace}.svc:9104"
    with_airflow  = "false"
    require_tls   = "true"
    # Each pod's own, in the same place: whom it believes, and what it shows, to servers and to whoever asks it.
    tls_ca           = "/etc/manifold-tls/ca.crt"
    tls_certificate  = "/etc/manifold-tls/tls.crt"
    tls_key          = "/etc/manifold-tls/tls.key"
    http_certificate = "/etc/manifold-tls/tls.crt"
    http_key         = "/etc/manifold-tls/tls.key"
    with_signals     = tostring(var.signals.replicas > 0)
  }, var.settings)
  # What reads a bundle of authorities from a variable only: the client of the object store.
  trust       = var.store_in_cluster ? { SSL_CERT_FILE = local.settings.tls_ca } : {}
  environment = merge({ for name, value in local.settings : "MANIFOLD_${upper(name)}" => value }, local.trust)
  given       = { site = var.site, image = var.image, checksum = sha256(jsonencode(local.environment)) }
  documents = concat([
    templatefile("${path.module}/manifests/settings.yaml.tftpl", merge(local.given, { environment = local.environment })),
    templatefile("${path.module}/manifests/recorder.yaml.tftpl", merge(local.given, { service = var.recorders })),
    templatefile("${path.module}/manifests/dispatcher.yaml.tftpl", merge(local.given, { service = var.dispatchers })),
    templatefile("${path.module}/manifests/api.yaml.tftpl", merge(local.given, { service = var.api })),
    templatefile("${path.module}/manifests/campaigner.yaml.tftpl", merge(local.given, { service = var.campaigner })),
    ], var.signals.replicas == 0 ? [] : [
    templatefile("${path.module}/manifests/signals.yaml.tftpl", merge(local.given, { service = var.signals })),
  ])
}

output "api_url" {
  description = "The API, inside the cluster."
  value       = "https://api.${var.site.namespace}.svc:9104"
}

output "settings" {
  description = "Every setting that is given, but for the secret ones."
  value       = local.settings
}
