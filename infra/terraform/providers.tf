terraform {
  required_providers {
    kubectl = {
      source  = "gavinbunney/kubectl"
      version = "~> 1.19"
    }
  }
}

provider "kubectl" {
  config_path       = var.kubeconfig
  config_context    = var.kube_context
  apply_retry_count = 3
}
