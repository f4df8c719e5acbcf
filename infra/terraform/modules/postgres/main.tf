locals {
  documents = [templatefile("${path.module}/manifests/postgres.yaml.tftpl", { site = var.site, server = var.server })]
}
