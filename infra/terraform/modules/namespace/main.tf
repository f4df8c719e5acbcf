locals {
  documents = [templatefile("${path.module}/manifests/namespace.yaml.tftpl", { site = var.site, egress_cidrs = var.egress_cidrs })]
}
