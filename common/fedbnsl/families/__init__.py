"""What a variable is, given its parents: log-likelihoods and their derivatives, as sums over records."""
