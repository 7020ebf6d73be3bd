"""The search for a graph between categories, in contingency tables that the sites were asked for set by set."""
