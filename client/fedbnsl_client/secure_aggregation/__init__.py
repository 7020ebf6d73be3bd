"""A site's part in secure aggregation: the coordinator learns the sum over all sites, and of one site only noise.

Each run begins with a round in which every site makes a key (`keys`) and signs it for exactly these sites, this plan
and this run. A site checks the others' signatures, and that its operator has confirmed enough of them (`peers`), before
it answers anything else. From each pair of keys follow `masks`, which one of the two adds to its numbers and the other
takes off: in the sum over all sites they cancel. They depend on the task, so that a coordinator who asks sites
differently gets noise. `member` puts this together.

The method is that of Bonawitz et al. 2017 without its recovery of masks: no site is taken out of a sum.
"""
