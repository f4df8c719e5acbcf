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

run "a_namespace_that_is_no_name" {
  command = plan
  variables { namespace = "Manifold_1" }
  expect_failures = [var.namespace]
}

run "a_namespace_of_kubernetes" {
  command = plan
  variables { namespace = "kube-manifold" }
  expect_failures = [var.namespace]
}

run "an_image_without_a_tag" {
  command = plan
  variables { image = "registry.example/manifold" }
  expect_failures = [var.image]
}

run "the_latest_image" {
  command = plan
  variables { image = "registry.example/manifold:latest" }
  expect_failures = [var.image]
}

run "a_tag_in_production" {
  command = plan
  variables {
    environment  = "production"
    egress_cidrs = ["10.0.0.0/8"]
  }
  expect_failures = [var.image]
}

run "everywhere_in_production" {
  command = plan
  variables {
    environment = "production"
    image       = "registry.example/manifold@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
  }
  expect_failures = [var.egress_cidrs]
}

run "what_is_no_network" {
  command = plan
  variables { egress_cidrs = ["10.0.0"] }
  expect_failures = [var.egress_cidrs]
}

run "a_secret_among_the_settings" {
  command = plan
  variables { settings = { http_token = "s3cret" } }
  expect_failures = [var.settings]
}

run "tls_turned_off" {
  command = plan
  variables { settings = { require_tls = "false" } }
  expect_failures = [var.settings]
}

run "a_setting_by_its_variable" {
  command = plan
  variables { settings = { MANIFOLD_DIRECT_ENQUEUE = "false" } }
  expect_failures = [var.settings]
}

run "no_recorder" {
  command = plan
  variables { recorders = { replicas = 0 } }
  expect_failures = [var.recorders]
}

run "a_journal_of_no_size" {
  command = plan
  variables { recorders = { journal = "20" } }
  expect_failures = [var.recorders]
}

run "more_doors_than_there_are_numbers" {
  command = plan
  variables { signals = { replicas = 24 } }
  expect_failures = [var.signals]
}

run "half_a_dispatcher" {
  command = plan
  variables { dispatchers = { replicas = 1.5 } }
  expect_failures = [var.dispatchers]
}

run "no_api" {
  command = plan
  variables { api = { replicas = 0 } }
  expect_failures = [var.api]
}

run "memory_that_spark_does_not_read" {
  command = plan
  variables { spark = { memory = "4Gi" } }
  expect_failures = [var.spark]
}

run "somebody_elses_broker_without_an_address" {
  command = plan
  variables { emqx = { in_cluster = false } }
  expect_failures = [var.emqx]
}

run "a_password_in_an_address" {
  command = plan
  variables { emqx = { in_cluster = false, mqtt_url = "mqtts://user:secret@broker:8884" } }
  expect_failures = [var.emqx]
}

run "services_in_the_clear" {
  command = plan
  variables { emqx = { in_cluster = false, mqtt_url = "mqtt://broker:1884" } }
  expect_failures = [var.emqx]
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

run "a_store_in_the_clear" {
  command = plan
  variables { object_store = { in_cluster = false, endpoint = "http://store:9000" } }
  expect_failures = [var.object_store]
}

run "a_bucket_that_is_none" {
  command = plan
  variables { object_store = { bucket = "A" } }
  expect_failures = [var.object_store]
}

run "a_store_without_a_scheme" {
  command = plan
  variables { object_store = { in_cluster = false, endpoint = "store:9000" } }
  expect_failures = [var.object_store]
}

run "an_executor_that_is_not_offered" {
  command = plan
  variables { airflow = { executor = "CeleryExecutor" } }
  expect_failures = [var.airflow]
}

run "an_alertmanager_by_url" {
  command = plan
  variables { observability = { alertmanager = "http://alertmanager:9093" } }
  expect_failures = [var.observability]
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
