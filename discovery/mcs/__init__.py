"""The Kubernetes side: one watcher per cluster, from EndpointSlices to usable addresses per pool key."""
