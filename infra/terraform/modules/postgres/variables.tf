variable "server" {
  description = "Image, size of the volume, CPU and memory."
  type        = object({ image = string, volume = string, cpu = string, memory = string })
}
