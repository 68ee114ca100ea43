"""One run over the ranks of torch.distributed: placement, halo exchange, gathered state. `runs` starts the ranks."""
