variable "site" {
  description = "What all modules share: namespace, environment, storage class, Secrets for images, names of the Secrets and of those with certificates, spread over zones, waiting, and kubectl's options."
  type = object({
    namespace          = string
    environment        = string
    storage_class      = string
    image_pull_secrets = list(string)
    secrets            = map(string)
    certificates       = map(string)
    zones              = bool
    wait_for_rollout   = bool
    kubectl            = string
  })
}
