variable "server" {
  description = "Image, size of the volume, CPU and memory; the region that clients name when they sign, and the bucket that is made."
  type        = object({ image = string, volume = string, cpu = string, memory = string, region = string, bucket = string })
}
