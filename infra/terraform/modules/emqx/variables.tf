variable "server" {
  description = "Nodes of the cluster; image, size of the volume, CPU and memory of each; kind of the Service for vehicles."
  type        = object({ replicas = number, image = string, volume = string, cpu = string, memory = string, service_type = string })
}

variable "files" {
  description = "Configuration by file name: Manifold's rules and access list, as infra/emqx has them."
  type        = map(string)
}
