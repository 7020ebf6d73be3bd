"""Methods that are not federated, to compare with: they see all rows in one place, or one site by itself."""
