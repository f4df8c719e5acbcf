# The provider waits for Deployments alone; for all else that is to run, or has to have run, apply waits here.
locals {
  context = var.kube_context == null ? "" : "--context=${var.kube_context}"
  ours    = "${local.context} --namespace=${var.namespace} --selector=app.kubernetes.io/part-of=manifold --timeout=15m"
}

resource "terraform_data" "rolled_out" {
  count            = var.wait_for_rollout ? 1 : 0
  triggers_replace = sha256(jsonencode(local.manifests))
  depends_on       = [module.manifold, module.airflow, module.emqx, module.redis, module.postgres, module.rabbitmq, module.object_store, module.observability]

  provisioner "local-exec" {
    environment = { KUBECONFIG = pathexpand(var.kubeconfig) }
    command     = "kubectl rollout status statefulset ${local.ours} && kubectl wait --for=condition=Complete job ${local.ours}"
  }
}
