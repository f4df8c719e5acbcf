# A cluster on one machine (kind, k3s, minikube): everything in it, one of each, as little as will do.
environment = "local"
image       = "localhost/manifold:dev"

recorders     = { journal = "1Gi", cpu = "200m", memory = "512Mi" }
signals       = { journal = "1Gi", cpu = "100m", memory = "256Mi" }
dispatchers   = { cpu = "200m", memory = "256Mi" }
api           = { cpu = "100m", memory = "512Mi" }
campaigner    = { cpu = "100m", memory = "256Mi" }
emqx          = { volume = "1Gi", cpu = "500m", memory = "1Gi", service_type = "NodePort" }
redis         = { volume = "1Gi", cpu = "100m", memory = "512Mi" }
postgres      = { volume = "1Gi", cpu = "100m", memory = "256Mi" }
rabbitmq      = { volume = "1Gi", cpu = "100m", memory = "512Mi" }
object_store  = { volume = "5Gi", cpu = "100m", memory = "256Mi" }
airflow       = { cpu = "200m", memory = "1536Mi", parallelism = 2 }
spark         = { executors = 1, cores = 1, memory = "1g", driver_memory = "1g", slots = 1 }
observability = { volume = "1Gi", retention = "2d" }
