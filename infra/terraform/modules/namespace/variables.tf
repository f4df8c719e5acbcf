variable "egress_cidrs" {
  description = "Networks outside the namespace that its pods may reach."
  type        = list(string)
}
