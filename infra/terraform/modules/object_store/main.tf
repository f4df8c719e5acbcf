locals {
  documents = [templatefile("${path.module}/manifests/object_store.yaml.tftpl", { site = var.site, server = var.server })]
}
