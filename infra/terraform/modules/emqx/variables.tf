variable "server" {
  description = "Image, size of the volume, CPU and memory of each node."
  type        = object({ image = string, volume = string, cpu = string, memory = string })
}

variable "replicas" {
  description = "Nodes of the cluster."
  type        = number
}

variable "secret" {
  description = "Name of the Secret; the README says which keys it has."
  type        = string
}

variable "service_type" {
  description = "Kind of the Service for vehicles."
  type        = string
}

variable "certificates" {
  description = "Names of two Secrets with tls.crt, tls.key and ca.crt: what vehicles are shown, and what services and other nodes are; each ca.crt says whose certificates are taken there."
  type        = object({ vehicles = string, services = string })
}

variable "files" {
  description = "Configuration by file name: Manifold's rules and access list, as infra/emqx has them."
  type        = map(string)
}
