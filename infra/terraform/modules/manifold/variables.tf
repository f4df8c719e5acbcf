variable "image" {
  description = "Manifold's image."
  type        = string
}

variable "store_in_cluster" {
  description = "Whether the object store shows a certificate of the same authority, and not one that every system trusts."
  type        = bool
}

variable "settings" {
  description = "Settings that all services share, by name, none of them secret."
  type        = map(string)
}

variable "recorders" {
  description = "Replicas, size of each journal, CPU and memory."
  type        = object({ replicas = number, journal = string, cpu = string, memory = string })
}

variable "dispatchers" {
  description = "Replicas, CPU and memory."
  type        = object({ replicas = number, cpu = string, memory = string })
}

variable "api" {
  description = "Replicas, CPU and memory."
  type        = object({ replicas = number, cpu = string, memory = string })
}

variable "campaigner" {
  description = "Replicas, CPU and memory."
  type        = object({ replicas = number, cpu = string, memory = string })
}

variable "signals" {
  description = "Replicas of the AMQP door (0: there is none), size of each journal, CPU and memory."
  type        = object({ replicas = number, journal = string, cpu = string, memory = string })
}
