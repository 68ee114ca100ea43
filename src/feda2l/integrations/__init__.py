"""FedA2L in other people's trainers; each module needs its library, and says when its three states exist there."""
