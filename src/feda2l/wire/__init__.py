"""What travels between nodes and how: messages, certificates, transports. Nothing here knows of rounds or training."""
