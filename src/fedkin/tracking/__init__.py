"""What runs report, handed on to MLflow and TensorBoard as it happens."""
