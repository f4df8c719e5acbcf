"""Pictures of the dashboards, drawn from the dashboards' own files with the figures of a running platform.

Grafana does not draw them: titles, expressions, units, legends and positions are those of the files, the look is not.
"""
