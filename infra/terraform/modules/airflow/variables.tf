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

variable "secret" {
  description = "Name of Airflow's Secret; the README says which keys it has."
  type        = string
}

variable "manifold_secret" {
  description = "Name of Manifold's Secret, of which jobs get jobs.toml."
  type        = string
}

variable "certificate" {
  description = "Name of the Secret with tls.crt, tls.key and ca.crt: what Airflow's pages show, with what jobs come to servers, and whom they believe."
  type        = string
}

variable "store_in_cluster" {
  description = "Whether the object store shows a certificate of the same authority: Java then believes that one, and no other."
  type        = bool
}
