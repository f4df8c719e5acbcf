"""Pictures of the dashboards, drawn from the dashboards' files with the metrics of a running platform.

The pictures are not drawn by Grafana. They have the titles, expressions, units, legends and positions of the files, but another
look.
"""
