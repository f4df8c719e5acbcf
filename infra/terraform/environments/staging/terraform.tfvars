# Everything in the cluster, with replicas where production has them: what breaks with two breaks here.
environment = "staging"
namespace   = "manifold-staging"
image       = "registry.example/manifold:0.1.0"
zones       = true

recorders    = { replicas = 2 }
signals      = { replicas = 2 }
dispatchers  = { replicas = 2 }
api          = { replicas = 2 }
campaigner   = { replicas = 2 }
emqx         = { replicas = 3, service_type = "LoadBalancer" }
airflow      = { executor = "KubernetesExecutor" }
egress_cidrs = ["10.0.0.0/8"]
