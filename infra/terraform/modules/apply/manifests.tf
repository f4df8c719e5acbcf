locals {
  split = flatten([for text in var.documents : [for document in split("\n---\n", "\n${text}") : document if trimspace(document) != ""]])

  # "StatefulSet recorder" => its YAML
  manifests = { for document in local.split : "${yamldecode(document).kind} ${yamldecode(document).metadata.name}" => document }
}
