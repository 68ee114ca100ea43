"""One real node: its config, its round over a network, its log and monitor. Many of them are in `swarm`."""
