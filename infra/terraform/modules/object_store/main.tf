locals {
  documents = [templatefile("${path.module}/manifests/object_store.yaml.tftpl", {
    site = var.site, server = var.server, secret = var.secret, certificate = var.certificate, region = var.region, bucket = var.bucket
  })]
}
