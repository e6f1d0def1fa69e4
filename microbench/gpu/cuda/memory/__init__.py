"""Device memory and caches of a real GPU: streams, latency, access patterns and allocation."""
