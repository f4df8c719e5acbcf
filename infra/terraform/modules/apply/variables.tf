variable "documents" {
  description = "YAML of Kubernetes objects, one or more in each string, with --- between."
  type        = list(string)
}

variable "wait_for_rollout" {
  description = "Wait until what was applied runs, and until what is taken away is gone."
  type        = bool
  default     = true
}

variable "kubectl" {
  description = "Options by which kubectl finds the cluster."
  type        = string
}
