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

locals {
  asks = { StatefulSet = "rollout status", Job = "wait --for=condition=Complete" }
  slow = { for name, text in local.manifests : name => yamldecode(text) if var.wait_for_rollout && contains(keys(local.asks), yamldecode(text).kind) }
}

# The provider waits for Deployments alone; what else has to run, or to have run, kubectl waits for whenever it was applied anew.
resource "terraform_data" "rolled_out" {
  for_each         = local.slow
  triggers_replace = kubectl_manifest.this[each.key].uid

  lifecycle {
    replace_triggered_by = [kubectl_manifest.this[each.key]]
  }

  provisioner "local-exec" {
    command = "kubectl ${var.kubectl} -n ${each.value.metadata.namespace} ${local.asks[each.value.kind]} ${each.value.kind}/${each.value.metadata.name} --timeout=15m"
  }
}
