variable "documents" {
  description = "YAML of Kubernetes objects, one or more in each string, with --- between."
  type        = list(string)
}

variable "wait_for_rollout" {
  description = "Return when what was applied runs, and not before."
  type        = bool
  default     = true
}
