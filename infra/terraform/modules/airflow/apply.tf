module "apply" {
  source           = "../apply"
  documents        = local.documents
  wait_for_rollout = var.site.wait_for_rollout
  kubectl          = var.site.kubectl
}

output "manifests" {
  description = "The YAML of each object, by kind and name."
  value       = module.apply.manifests
}
