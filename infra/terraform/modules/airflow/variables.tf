variable "image" {
  description = "Manifold's image: Airflow, and Spark's executors, run from it."
  type        = string
}

variable "airflow" {
  description = "Executor, CPU, memory, and how many tasks run at once."
  type        = object({ executor = string, cpu = string, memory = string, parallelism = number })
}

variable "spark" {
  description = "Executors of a job, their cores and memory, the driver's memory, and how many jobs run at once."
  type        = object({ executors = number, cores = number, memory = string, driver_memory = string, slots = number })
}

variable "store_in_cluster" {
  description = "Whether the object store shows a certificate of the same authority: Java then believes that one, and no other."
  type        = bool
}
