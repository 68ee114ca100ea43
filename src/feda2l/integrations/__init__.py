"""FedA2L inside Lightning, the Hugging Face Trainer, Flower and hivemind. Each module requires its library."""
