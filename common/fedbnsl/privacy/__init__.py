"""What privacy costs: public arithmetic, the same at the coordinator and at a site.

`zcdp` converts between zCDP and (epsilon, delta), `gaussian_dp` does so where every release is Gaussian, or a selection
that is paid for with a surcharge. `calibration` derives every noise scale of a plan and its privacy cost, `report` says
the guarantee in words, `cli` is `fedbnsl privacy`. No data and no randomness here: noise is drawn in
`fedbnsl_client.privacy`.
"""
