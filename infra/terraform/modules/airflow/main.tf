locals {
  of_all           = { site = var.site, image = var.image, airflow = var.airflow, spark = var.spark, store_in_cluster = var.store_in_cluster }
  given            = merge(local.of_all, { checksum = sha256(jsonencode([var.airflow, var.spark, var.store_in_cluster, local.spark_defaults])) })
  spark_defaults   = templatefile("${path.module}/manifests/spark-defaults.conf.tftpl", local.of_all)
  spark_driver     = templatefile("${path.module}/manifests/spark-driver.yaml.tftpl", local.of_all)
  spark_executor   = templatefile("${path.module}/manifests/spark-executor.yaml.tftpl", local.of_all)
  worker           = templatefile("${path.module}/manifests/worker.yaml.tftpl", local.given)
  unnamed_migrate  = templatefile("${path.module}/manifests/migrate.yaml.tftpl", merge(local.given, { release = "" }))
  release          = substr(sha256(local.unnamed_migrate), 0, 8)
  roles            = { api-server = "api-server", scheduler = "scheduler", dag-processor = "dag-processor", triggerer = "triggerer" }
  with_cluster_api = ["scheduler"]
  documents = concat(
    [templatefile("${path.module}/manifests/common.yaml.tftpl", merge(local.given, {
      files = { "spark-defaults.conf" = local.spark_defaults, "spark-driver.yaml" = local.spark_driver, "spark-executor.yaml" = local.spark_executor, "worker.yaml" = local.worker }
    }))],
    [templatefile("${path.module}/manifests/migrate.yaml.tftpl", merge(local.given, { release = local.release }))],
    [for role in keys(local.roles) : templatefile("${path.module}/manifests/process.yaml.tftpl", merge(local.given, { role = role, jobs = contains(local.with_cluster_api, role) }))],
  )
}

output "url" {
  description = "Airflow's pages, inside the cluster."
  value       = "https://airflow.${var.site.namespace}.svc:8080"
}

output "spark_files" {
  description = "What Spark is given: its defaults, and the templates of driver and executors."
  value       = { defaults = local.spark_defaults, driver = local.spark_driver, executor = local.spark_executor }
}
