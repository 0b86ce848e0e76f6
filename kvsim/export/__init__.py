"""A run in formats of other tools: a timeline for Perfetto, metrics for Prometheus and Grafana."""
