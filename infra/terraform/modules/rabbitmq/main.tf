locals {
  documents = [templatefile("${path.module}/manifests/rabbitmq.yaml.tftpl", { site = var.site, server = var.server })]
}
