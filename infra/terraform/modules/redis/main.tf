locals {
  documents = [templatefile("${path.module}/manifests/redis.yaml.tftpl", { site = var.site, server = var.server })]
}
