"""FedA2L inside Lightning, the Hugging Face Trainer, Flower and hivemind. Each module needs its library."""
