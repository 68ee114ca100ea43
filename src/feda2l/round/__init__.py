"""One round of Algorithm 1 (`round.play_round`) and its parts. Where nodes are is known to `Exchange` alone."""
