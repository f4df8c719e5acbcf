variable "server" {
  description = "Image, size of the volume, CPU and memory."
  type        = object({ image = string, volume = string, cpu = string, memory = string })
}

variable "secret" {
  description = "Name of the Secret; the README says which keys it has."
  type        = string
}

variable "certificate" {
  description = "Name of the Secret with tls.crt, tls.key and ca.crt, which is shown to whoever connects."
  type        = string
}
