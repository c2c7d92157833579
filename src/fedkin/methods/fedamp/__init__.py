"""FedAMP: federated attentive message passing (Huang et al. 2021)."""
