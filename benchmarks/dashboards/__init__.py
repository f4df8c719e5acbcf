"""Pictures of the dashboards: drawn from their own files, of what a platform at work tells a real Prometheus.

They are not Grafana's, which draws the same files: titles, expressions, units, legends and places are theirs, the look is not.
"""
