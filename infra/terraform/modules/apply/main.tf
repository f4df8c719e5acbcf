# The one place that knows the provider: it applies manifests as they stand, and sees when somebody has changed an object.

terraform {
  required_providers {
    kubectl = {
      source  = "gavinbunney/kubectl"
      version = "~> 1.19"
    }
  }
}

resource "kubectl_manifest" "this" {
  for_each = local.manifests

  yaml_body         = each.value
  server_side_apply = true
  force_conflicts   = true
  wait_for_rollout  = var.wait_for_rollout

  # Who settles what it took has its servers until it has ended, and a namespace that is still being emptied takes nothing new.
  wait = var.wait_for_rollout && contains(["Namespace", "Deployment", "StatefulSet", "Job"], yamldecode(each.value).kind)
}
