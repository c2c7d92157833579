"""What each node contributes to the owner's score: leave-one-out and Shapley values."""
