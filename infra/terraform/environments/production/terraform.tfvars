# What keeps data is somebody's whose trade it is; EMQX and Manifold run here. Sizes: docs/guides/scale.md.
environment   = "production"
image         = "registry.example/manifold@sha256:0000000000000000000000000000000000000000000000000000000000000000" # of the release
storage_class = "replicated-ssd"
zones         = true
egress_cidrs  = ["10.0.0.0/8"]

recorders    = { replicas = 3, journal = "100Gi", cpu = "2", memory = "2Gi" }
signals      = { replicas = 3, journal = "50Gi", cpu = "1", memory = "1Gi" }
dispatchers  = { replicas = 6, cpu = "1", memory = "1Gi" }
api          = { replicas = 3, cpu = "1", memory = "2Gi" }
campaigner   = { replicas = 2, cpu = "1", memory = "2Gi" }
emqx         = { replicas = 5, cpu = "8", memory = "16Gi", volume = "50Gi", service_type = "LoadBalancer" }
redis        = { in_cluster = false }
postgres     = { in_cluster = false }
rabbitmq     = { in_cluster = false }
object_store = { in_cluster = false, region = "eu-central-1", bucket = "example-manifold" }
airflow      = { executor = "KubernetesExecutor", cpu = "1", memory = "4Gi", parallelism = 16 }
spark        = { executors = 8, cores = 4, memory = "16g", driver_memory = "4g", slots = 4 }

observability = { volume = "200Gi", retention = "30d", alertmanager = "alertmanager.example:9093" }
