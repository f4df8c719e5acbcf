output "manifests" {
  description = "The YAML of each object, by kind and name."
  value       = local.manifests
}
