"""Messages between nodes, certificates and transports. Nothing here knows about training."""
