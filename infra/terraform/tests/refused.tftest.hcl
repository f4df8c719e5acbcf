# Variables that are refused, each with a message that says what would be right. Played by tests/infra/test_terraform.py.

variables {
  environment = "staging"
  image       = "registry.example/manifold:1"
}

run "what_is_right_is_taken" {
  command = plan

  assert {
    condition     = output.mqtt.vehicles == "mqtts://emqx-vehicles.manifold.svc:8883"
    error_message = "vehicles must come by TLS, but are sent to ${output.mqtt.vehicles}"
  }
  assert {
    condition     = output.settings.require_tls == "true" && output.mqtt.services == "mqtts://emqx.manifold.svc:8884"
    error_message = "services must refuse what goes in the clear, and come to the broker by TLS, not at ${output.mqtt.services}"
  }
}

run "another_environment" {
  command = plan
  variables { environment = "test" }
  expect_failures = [var.environment]
}

# A run may have a wrong value of many variables: each is refused by its own.

run "values_out_of_bounds" {
  command = plan
  variables {
    namespace     = "Manifold_1"                # no DNS label
    image         = "registry.example/manifold" # without a tag
    egress_cidrs  = ["10.0.0"]
    settings      = { http_token = "s3cret" } # a secret
    recorders     = { replicas = 0 }
    signals       = { replicas = 24 } # more doors than there are numbers
    dispatchers   = { replicas = 1.5 }
    api           = { replicas = 0 }
    spark         = { memory = "4Gi" }     # which Spark does not read
    emqx          = { in_cluster = false } # somebody else's, without an address
    object_store  = { bucket = "A" }
    airflow       = { executor = "CeleryExecutor" }
    observability = { alertmanager = "http://alertmanager:9093" }
  }
  expect_failures = [
    var.namespace, var.image, var.egress_cidrs, var.settings, var.recorders, var.signals, var.dispatchers,
    var.api, var.spark, var.emqx, var.object_store, var.airflow, var.observability,
  ]
}

run "values_of_a_wrong_kind" {
  command = plan
  variables {
    namespace    = "kube-manifold"                    # one of Kubernetes' own
    image        = "registry.example/manifold:latest" # whatever that is today
    settings     = { MANIFOLD_DIRECT_ENQUEUE = "false" }
    recorders    = { journal = "20" } # of what?
    emqx         = { in_cluster = false, mqtt_url = "mqtts://user:secret@broker:8884" }
    object_store = { in_cluster = false, endpoint = "store:9000" } # without a scheme
  }
  expect_failures = [var.namespace, var.image, var.settings, var.recorders, var.emqx, var.object_store]
}

run "services_in_the_clear" {
  command = plan
  variables {
    settings     = { require_tls = "false" }
    emqx         = { in_cluster = false, mqtt_url = "mqtt://broker:1884" }
    object_store = { in_cluster = false, endpoint = "http://store:9000" }
  }
  expect_failures = [var.settings, var.emqx, var.object_store]
}

run "vehicles_in_the_clear" {
  command = plan
  variables { emqx = { in_cluster = false, mqtt_url = "mqtts://broker:8884", vehicle_url = "mqtt://broker:1883" } }
  expect_failures = [var.emqx]
}

run "sessions_in_the_clear" {
  command = plan
  variables { emqx = { in_cluster = false, mqtt_url = "mqtts://broker:8884", api_url = "http://broker:18083/api/v5" } }
  expect_failures = [var.emqx]
}

run "a_tag_and_everywhere_in_production" {
  command = plan
  variables { environment = "production" } # image and egress_cidrs as they are in staging
  expect_failures = [var.image, var.egress_cidrs]
}

run "somebody_elses_services" {
  command = plan
  variables {
    emqx          = { in_cluster = false, mqtt_url = "mqtts://broker.example:8884", vehicle_url = "mqtts://broker.example:8883" }
    redis         = { in_cluster = false }
    postgres      = { in_cluster = false }
    rabbitmq      = { in_cluster = false }
    object_store  = { in_cluster = false, bucket = "theirs" }
    observability = { enabled = false }
  }

  assert {
    condition     = length([for name in keys(output.manifests) : name if can(regex("^StatefulSet", name))]) == 3
    error_message = "only recorder, dispatcher and signals may be left of the StatefulSets: ${join(", ", keys(output.manifests))}"
  }
  assert {
    condition     = output.settings.mqtt_url == "mqtts://broker.example:8884" && output.settings.archive_url == "s3://theirs/archive"
    error_message = "services must be told of somebody else's broker and store"
  }
}
