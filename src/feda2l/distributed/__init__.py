"""Train one run on several torch.distributed ranks: placement, halo exchange, gathered state. `runs` starts ranks."""
