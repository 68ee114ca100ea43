"""One real node: its config, its rounds over a network, its log and its monitor. `swarm` starts many of them."""
