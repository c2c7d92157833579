"""FedAvg, then fine-tuning on the owner's own data."""
