variable "observability" {
  description = "Images, size of Prometheus' volume, how long it keeps, and where alerts go (host:port, or empty)."
  type        = object({ prometheus_image = string, grafana_image = string, volume = string, retention = string, alertmanager = string })
}

variable "manifold_secret" {
  description = "Name of Manifold's Secret, of which Prometheus shows http-token."
  type        = string
}

variable "grafana_secret" {
  description = "Name of the Secret with the key admin-password."
  type        = string
}

variable "certificates" {
  description = "Names of Secrets with tls.crt, tls.key and ca.crt: what Prometheus and Grafana show, and whom they believe."
  type        = object({ prometheus = string, grafana = string })
}

variable "rules" {
  description = "Alert rules by file name, as infra/prometheus has them."
  type        = map(string)
}

variable "dashboards" {
  description = "Dashboards by file name, as infra/grafana has them."
  type        = map(string)
}
