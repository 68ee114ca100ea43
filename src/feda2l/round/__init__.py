"""One round of Algorithm 1 (`round.play_round`) and its parts. Only `Exchange` knows where the nodes run."""
