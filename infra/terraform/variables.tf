variable "environment" {
  description = "Which environment this is; a label of every object."
  type        = string
  validation {
    condition     = contains(["local", "staging", "production"], var.environment)
    error_message = "environment must be local, staging or production."
  }
}

variable "kubeconfig" {
  description = "File with the cluster's address and credentials."
  type        = string
  default     = "~/.kube/config"
}

variable "kube_context" {
  description = "Context in kubeconfig; null: the current one."
  type        = string
  default     = null
}

variable "namespace" {
  description = "Namespace that is made, and holds everything."
  type        = string
  default     = "manifold"
  validation {
    condition     = can(regex("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", var.namespace)) && !startswith(var.namespace, "kube-")
    error_message = "namespace must be a DNS label (a-z, 0-9 and -, at most 63 characters) and not begin with kube-."
  }
}

variable "image" {
  description = "Manifold's image: services, Airflow and Spark's executors run from it. With a tag or, better, a digest; production takes a digest only."
  type        = string
  validation {
    condition     = can(regex("[^/]+(:[A-Za-z0-9_.-]+|@sha256:[0-9a-f]{64})$", var.image)) && !endswith(var.image, ":latest")
    error_message = "image must name a tag other than latest, or a digest (…@sha256:…): what runs must be known."
  }
  validation {
    condition     = var.environment != "production" || can(regex("@sha256:[0-9a-f]{64}$", var.image))
    error_message = "image must name a digest (…@sha256:…) in production: a tag can be moved to other bytes."
  }
}

variable "image_pull_secrets" {
  description = "Names of Secrets with which images are pulled."
  type        = list(string)
  default     = []
}

variable "storage_class" {
  description = "Storage class of all volumes; empty: the cluster's default. The recorder's journal needs a disk that survives its node, or local disks and patience."
  type        = string
  default     = ""
}

variable "wait_for_rollout" {
  description = "Whether apply returns only when everything runs, and destroy when everything is gone; apply asks with kubectl. false where no kubelet is."
  type        = bool
  default     = true
}

variable "zones" {
  description = "Whether replicas are spread over zones (topology.kubernetes.io/zone) besides nodes."
  type        = bool
  default     = false
}

variable "egress_cidrs" {
  description = "Networks that pods may reach outside the namespace: Kubernetes' API server, and services that are somebody else's."
  type        = list(string)
  default     = ["0.0.0.0/0"]
  validation {
    condition     = alltrue([for cidr in var.egress_cidrs : can(cidrhost(cidr, 0))])
    error_message = "egress_cidrs must be networks, such as 10.0.0.0/8."
  }
  validation {
    condition     = var.environment != "production" || !contains(var.egress_cidrs, "0.0.0.0/0")
    error_message = "egress_cidrs must not be 0.0.0.0/0 in production: name the API server's network and those of your services."
  }
}

variable "secrets" {
  description = "Names of the Secrets that exist in the namespace before; the README says which keys each has."
  type = object({
    manifold     = optional(string, "manifold")
    airflow      = optional(string, "airflow")
    emqx         = optional(string, "emqx")
    redis        = optional(string, "redis")
    postgres     = optional(string, "postgres")
    rabbitmq     = optional(string, "rabbitmq")
    object_store = optional(string, "object-store")
    grafana      = optional(string, "grafana")
  })
  default = {}
}

variable "certificates" {
  description = "Names of the Secrets with tls.crt, tls.key and ca.crt (as cert-manager makes them, or certificates.sh); the README says what each must have."
  type = object({
    recorder      = optional(string, "recorder-tls")
    dispatcher    = optional(string, "dispatcher-tls")
    signals       = optional(string, "signals-tls")
    api           = optional(string, "api-tls")
    campaigner    = optional(string, "campaigner-tls")
    airflow       = optional(string, "airflow-tls")
    emqx          = optional(string, "emqx-tls")
    emqx_vehicles = optional(string, "emqx-vehicles-tls")
    redis         = optional(string, "redis-tls")
    postgres      = optional(string, "postgres-tls")
    rabbitmq      = optional(string, "rabbitmq-tls")
    object_store  = optional(string, "object-store-tls")
    prometheus    = optional(string, "prometheus-tls")
    grafana       = optional(string, "grafana-tls")
  })
  default = {}
}

variable "settings" {
  description = "Further settings of Manifold (MANIFOLD_…), none of them secret: { ingest_schedule = \"*/5 * * * *\" }."
  type        = map(string)
  default     = {}
  validation {
    condition     = alltrue([for name in keys(var.settings) : can(regex("^[a-z][a-z0-9_]*$", name)) && !can(regex("(password|secret|token|access_key|hmac_accepted|redis_url|amqp_url|operator_url|alert_url|lineage_url|catalog_uri|catalog_properties|signals_keys)", name))])
    error_message = "settings must have names in lower case without MANIFOLD_, and no secrets: those go into the Secret that secrets.manifold names."
  }
  validation {
    condition     = alltrue([for name in keys(var.settings) : !can(regex("^(require_tls|http_certificate|http_key)$", name))])
    error_message = "settings must not say require_tls, http_certificate or http_key: in an environment nothing listens in the clear."
  }
}

variable "recorders" {
  description = "Recorders, each with a journal of its own on a volume. Fewer than before only after those that go have emptied their journals."
  type        = object({ replicas = optional(number, 1), journal = optional(string, "20Gi"), cpu = optional(string, "1"), memory = optional(string, "1Gi") })
  default     = {}
  validation {
    condition     = var.recorders.replicas >= 1 && var.recorders.replicas <= 64 && floor(var.recorders.replicas) == var.recorders.replicas
    error_message = "recorders.replicas must be a whole number from 1 to 64."
  }
  validation {
    condition     = can(regex("^[1-9][0-9]*(Mi|Gi|Ti)$", var.recorders.journal))
    error_message = "recorders.journal must be a size such as 20Gi."
  }
}

variable "signals" {
  description = "AMQP doors, each with a journal of its own on a volume; none where rabbitmq.enabled is false."
  type        = object({ replicas = optional(number, 1), journal = optional(string, "10Gi"), cpu = optional(string, "500m"), memory = optional(string, "1Gi") })
  default     = {}
  validation {
    condition     = var.signals.replicas >= 0 && var.signals.replicas <= 23 && floor(var.signals.replicas) == var.signals.replicas
    error_message = "signals.replicas must be a whole number from 0 to 23: their numbers begin at 1000 and end at 1023."
  }
  validation {
    condition     = can(regex("^[1-9][0-9]*(Mi|Gi|Ti)$", var.signals.journal))
    error_message = "signals.journal must be a size such as 10Gi."
  }
}

variable "dispatchers" {
  description = "Dispatchers; each uses up to one core."
  type        = object({ replicas = optional(number, 1), cpu = optional(string, "1"), memory = optional(string, "512Mi") })
  default     = {}
  validation {
    condition     = var.dispatchers.replicas >= 1 && var.dispatchers.replicas <= 64 && floor(var.dispatchers.replicas) == var.dispatchers.replicas
    error_message = "dispatchers.replicas must be a whole number from 1 to 64."
  }
}

variable "api" {
  description = "Replicas of the API."
  type        = object({ replicas = optional(number, 1), cpu = optional(string, "500m"), memory = optional(string, "1Gi") })
  default     = {}
  validation {
    condition     = var.api.replicas >= 1 && floor(var.api.replicas) == var.api.replicas
    error_message = "api.replicas must be a whole number, 1 or more."
  }
}

variable "campaigner" {
  description = "Campaigners: one is active, the others stand by. A campaign of a million vehicles takes some 330 MB."
  type        = object({ replicas = optional(number, 1), cpu = optional(string, "500m"), memory = optional(string, "1Gi") })
  default     = {}
  validation {
    condition     = var.campaigner.replicas >= 1 && floor(var.campaigner.replicas) == var.campaigner.replicas
    error_message = "campaigner.replicas must be a whole number, 1 or more."
  }
}

variable "spark" {
  description = "Spark's executors for each job, as pods."
  type        = object({ executors = optional(number, 2), cores = optional(number, 2), memory = optional(string, "4g"), driver_memory = optional(string, "2g"), slots = optional(number, 2) })
  default     = {}
  validation {
    condition     = can(regex("^[1-9][0-9]*[mg]$", var.spark.memory)) && can(regex("^[1-9][0-9]*[mg]$", var.spark.driver_memory))
    error_message = "spark.memory and spark.driver_memory must be sizes as Spark writes them, such as 4g."
  }
}

variable "emqx" {
  description = "The broker: in the cluster, or, with in_cluster = false, somebody else's at mqtt_url (services) and vehicle_url, with infra/emqx's rules."
  type = object({
    in_cluster   = optional(bool, true)
    replicas     = optional(number, 1)
    image        = optional(string, "emqx/emqx:5.8.9")
    volume       = optional(string, "5Gi")
    cpu          = optional(string, "2")
    memory       = optional(string, "2Gi")
    service_type = optional(string, "ClusterIP")
    mqtt_url     = optional(string, "")
    vehicle_url  = optional(string, "")
    api_url      = optional(string, "")
  })
  default = {}
  validation {
    condition     = var.emqx.in_cluster || can(regex("^mqtts://[^/@]+:[0-9]+$", var.emqx.mqtt_url))
    error_message = "emqx.mqtt_url must be mqtts://host:port, without a password, where emqx.in_cluster is false."
  }
  validation {
    condition     = contains(["ClusterIP", "NodePort", "LoadBalancer"], var.emqx.service_type)
    error_message = "emqx.service_type must be ClusterIP, NodePort or LoadBalancer."
  }
  validation {
    condition     = can(regex("^(mqtts://[^/@]+:[0-9]+)?$", var.emqx.vehicle_url)) && can(regex("^(https://.+)?$", var.emqx.api_url))
    error_message = "emqx.vehicle_url must be mqtts://host:port and emqx.api_url https://…, or empty: nothing goes in the clear."
  }
}

variable "redis" {
  description = "Redis: in the cluster, or somebody else's. Where it is, with its password, the Secret secrets.manifold says (redis_url)."
  type        = object({ in_cluster = optional(bool, true), image = optional(string, "redis:7.4.2-bookworm"), volume = optional(string, "10Gi"), cpu = optional(string, "1"), memory = optional(string, "2Gi") })
  default     = {}
}

variable "postgres" {
  description = "PostgreSQL for Airflow and the catalog: in the cluster, or somebody else's, as the Secrets secrets.airflow and secrets.manifold say (sql_alchemy_conn, catalog_uri)."
  type        = object({ in_cluster = optional(bool, true), image = optional(string, "postgres:16.8-bookworm"), volume = optional(string, "20Gi"), cpu = optional(string, "500m"), memory = optional(string, "1Gi") })
  default     = {}
}

variable "rabbitmq" {
  description = "RabbitMQ for signals: in the cluster, or somebody else's. enabled = false: there is none."
  type        = object({ enabled = optional(bool, true), in_cluster = optional(bool, true), image = optional(string, "rabbitmq:3.13.7"), volume = optional(string, "10Gi"), cpu = optional(string, "500m"), memory = optional(string, "1Gi") })
  default     = {}
}

variable "object_store" {
  description = "S3-compatible store of archive, warehouse and reports: a gateway over one volume in the cluster, or somebody else's at endpoint (empty: AWS)."
  type = object({
    in_cluster = optional(bool, true)
    image      = optional(string, "ghcr.io/versity/versitygw:v1.8.0")
    volume     = optional(string, "100Gi")
    cpu        = optional(string, "500m")
    memory     = optional(string, "512Mi")
    endpoint   = optional(string, "")
    region     = optional(string, "us-east-1")
    bucket     = optional(string, "manifold")
  })
  default = {}
  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", var.object_store.bucket))
    error_message = "object_store.bucket must be a bucket's name: 3 to 63 of a-z, 0-9, . and -."
  }
  validation {
    condition     = can(regex("^(https://[^/]+)?$", var.object_store.endpoint))
    error_message = "object_store.endpoint must be https://host[:port], or empty for AWS."
  }
}

variable "airflow" {
  description = "Airflow: its executor, and what its processes get."
  type        = object({ executor = optional(string, "LocalExecutor"), cpu = optional(string, "500m"), memory = optional(string, "2Gi"), parallelism = optional(number, 4) })
  default     = {}
  validation {
    condition     = contains(["LocalExecutor", "KubernetesExecutor"], var.airflow.executor)
    error_message = "airflow.executor must be LocalExecutor or KubernetesExecutor."
  }
}

variable "observability" {
  description = "Prometheus with Manifold's rules, and Grafana with its dashboards; enabled = false where a site has its own. alertmanager: host:port that gets the alerts, by HTTPS."
  type        = object({ enabled = optional(bool, true), prometheus_image = optional(string, "prom/prometheus:v3.2.1"), grafana_image = optional(string, "grafana/grafana:11.5.2"), volume = optional(string, "20Gi"), retention = optional(string, "15d"), alertmanager = optional(string, "") })
  default     = {}
  validation {
    condition     = can(regex("^([^:/]+:[0-9]+)?$", var.observability.alertmanager))
    error_message = "observability.alertmanager must be host:port, or empty."
  }
}
