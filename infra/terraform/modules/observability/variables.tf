variable "observability" {
  description = "Images, size of Prometheus' volume, how long it keeps, and where alerts go (host:port, or empty)."
  type        = object({ prometheus_image = string, grafana_image = string, volume = string, retention = string, alertmanager = string })
}

variable "rules" {
  description = "Alert rules by file name, as infra/prometheus has them."
  type        = map(string)
}

variable "dashboards" {
  description = "Dashboards by file name, as infra/grafana has them."
  type        = map(string)
}
