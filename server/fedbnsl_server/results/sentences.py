"""What people read about a run, made in one place from codes with numbers.

Code that computes gives a `Note`, such as ``note("rarely_drawn", n=2, edges=["a and b", "b and c"])``. `sentence` fills
in the template of its code; `in_words` does so for all notes in the content of result.json. A template names numbers of
its note, with Python's format specs and these:

    {names:few 4}              the first 4 of a list (8 without a number); `quoted 4`: each of them in quotation marks
    {n:counted edge|edges}     1 edge, 2 edges
    {units:units}              in which units a variance is, of UNITS
    {share:percent}            57 %
    {flag:?yes, {n}|no}        one of two texts, by whether `flag` is true, not empty and not 0
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any, cast, get_args

from fedbnsl.console.wording import counted, first_few
from fedbnsl.graphs.directed_by import Source
from fedbnsl.rounds.completion import LEAST_ROWS
from fedbnsl_server.inference.curvature import LEAST_SHARE
from fedbnsl_server.inference.degenerate_columns import FEW_ROWS
from fedbnsl_server.inference.draws import FEW_DRAWS
from fedbnsl_server.results.result_schema import HiddenCauses

UNITS: Mapping[str, str] = {
    "": "",
    "prepared": "without units, as shares of the columns' pooled variances",
    "dictionary": "in the data dictionary's units, after its transforms",
    "tables": "in the tables' units",
}
"""In which units numbers are; empty: in the variables' own."""

DIRECTED_BY: Mapping[str, str] = {
    "data": "by the data",
    "knowledge": "by knowledge",
    "interventions": "by interventions",
    "sites": "by sites that differ",
    "noise": "by the shape of noise",
    "assumption": "by equal variances",
    "untested": "not tested",
    "undecided": "too few draws agree",
    "nobody": "the data leave it open",
}
"""Who can direct an edge, as in result.json, or why nobody does, and how it is said."""

FORMS: Mapping[str, str] = {
    "line": "straight line",
    "curve": "curve",
    "table": "table of counts",
    "indicators": "columns of zeros and ones",
    "indicator": "zero and one",
    "ranks": "levels as 0, 1, 2, ...",
    "unused": "not used",
}
"""How a variable was taken, as in result.json, and how it is said."""

_COMPARE = (
    "compare its columns, units and coding with the others'; if they are right, its practice or its patients differ, "
    "and the result is a mean of what differs: report this site by itself, too; if they are wrong, "
)
_BENDS_ACCUSE = "{bent:?. Effects that are no straight lines, which there are, can make true knowledge look so|}"
_LEFT_OPEN = "directions that the data leave open rest on "
_BEYOND_CHANCE = "more than chance{noisy:? and the noise of privacy} gives"
_STANDS_OUT = (
    "{site} stands out: its {numbers} of round {round} lie {ratio:.3g} times as far from the other sites' as these "
    "from each other, most in {variables:quoted 1000}. "
)
_WARNINGS: Mapping[str, str] = {
    "never_together": "{pairs:few 8}: no row has a value of both, so that whether there is an edge between "
    "{one:?them|such a pair} is not known; none is shown, and no arrow rests on it",
    "not_converged": "EM, which uses rows with gaps, had not converged after {iterations} iterations (a change of "
    "{change:.1g}): compare with a run of the rows without gaps (--set preparation.missing=complete-cases)",
    "outlying": "{values:few 4}: so far apart from all others that they count as missing, as slips of a decimal point "
    "or of a unit would have to; look at them at the sites, and correct them or keep them (--set "
    "preparation.outlying=keep)",
    "no_guarantee": "no privacy guarantee: {reason}",
    "outlier": _STANDS_OUT
    + f"The result may be this site's alone: {_COMPARE}correct them, or run again without this site",
    "outlier_now": _STANDS_OUT + f"C{_COMPARE[1:]}`fedbnsl coordinator eject` takes it out of the run",
    "odd_site": "{site} differs from all other sites in {pairs:few 4}: without it the others agree"
    "{lost:?, and the graph lacks {lost:few 4}}{gained:?{lost:? and|, and the graph} also has {gained:few 4}}. "
    f"C{_COMPARE[1:]}correct them, or run again without this site "
    '(`consensus = "median"` would {left_out:?leave it out|not leave it out})',
    "many_rows": "{site} says that it has {rows} rows, {times} times the median of the other sites: its numbers may "
    "weigh more than theirs, and nobody else can count its rows",
    "left_out": "{sites}: left out of the search of round {round} by the plan's consensus, as the {numbers} farthest "
    "from the other sites'",
    "sites_not_counted": "{sites:few 8} {gaps:?had a missing value in each row|missed a round of counts}: "
    "graph, weights and intervals come from the other sites alone",
    "no_value_at_site": "{site} has no value of {names:quoted 8}: {one:?is it|are they} in another unit there, or "
    "coded otherwise? If the site does not have {one:?it|them}, say so in the plan ([absent])",
    "tables_withheld": "categories were not searched by counts: {sites:few 8} {one:?sends|send} no counts below a "
    "limit of {one:?its|their} own, and {n} of {asked} tables of counts were withheld, families of the graph among "
    "them; the graph is that of straight lines between levels",
    "some_tables_withheld": "{sites:few 8} {one:?sends|send} no counts below a limit of {one:?its|their} own: {n} of "
    "{asked} tables of counts were withheld, and edges that only these would show were not tried",
    "ejected": "{site} was ejected{round:? after round {round}: later rounds went on without it, from what it had "
    "helped to find|: nothing of it is in the result}",
    "enrolment_ended": "{site} lost its enrolment after round {round}: what it had contributed stays in the result",
    "search_ended": "the search of round {round} was ended early by the operator, in its part {part!r}: "
    "{lost:?the graph is complete, but {lost}|another graph may fit better}"
    "{planned:?; {draws} of {planned} draws of the bootstrap were made}",
    "other_versions": "the parties ran different versions of fedbnsl (coordinator {coordinator}; {sites:few 1000}): "
    "the same run need not give the same bits again",
    "faint_edges_hidden": "the noise hides correlations of residuals below {hidden:.2g}: edges that are fainter are "
    "lost; use fewer variables, narrower ranges in the data dictionary, more rows or a larger epsilon",
    "edges_hidden": "the noise hides correlations of residuals below {hidden:.2g}, which is more than the threshold "
    "{threshold:g}: most edges are lost; use fewer variables, narrower ranges in the data dictionary, more rows or a "
    "larger epsilon",
    "few_rows": "{rows:,} rows are few for {columns} columns, fewer than {each} a column ({needed:,}): faint edges "
    "are missed, some edges are there by chance, and directions are hardly known; bring more rows, or choose fewer "
    "variables beforehand",
    "uncounted_sites": "{sites:few} {one:?has|have} too few rows for this epsilon: the noise hides the last release, "
    "which does not count in the result; more rows, narrower ranges in the data dictionary or a larger epsilon would "
    "tell",
    "rare_levels": f"fewer than {FEW_ROWS} of {{rows:,}} rows have the value that is rarer{{within:? at their site}} "
    "of {columns:few}: an edge, an interval or an effect there may come from these rows alone; merge the level with "
    "another, or do not interpret it",
    "hidden_scales": "the noise of the statistics hides how much {columns:quoted} vary: they were divided by the size "
    "of the noise instead. Their weights without units mislead, and faint edges are lost; narrower ranges in the data "
    "dictionary, more rows or a larger epsilon would tell",
    "required_in_vain": "the plan requires {edges:few 4}, but the data do not show it: 0 is in the coefficient's "
    "interval",
    "clipped_levels": "records are clipped before their moments are released, rare ones most: weights of edges into "
    "{variables:quoted} come out too large or too small; take from them that there is an edge and its sign, not its "
    "size",
    "withheld_weights": "{n:counted weight is|weights are} withheld, at {edges:few 4}: noise went beyond what is "
    "possible, for a level changes no probability by more than 1, and no mean by more than its range; merge rare "
    "levels, or bring more rows or a larger epsilon",
    "rarely_drawn": "{n:counted edge was|edges were} taken out, between {edges:few 4}: fewer than 5 % of the bootstrap "
    "draws have them, so that noise may have made them",
    "unequal_variances": "residual variances{private:?, from noisy moments,} differ ({low}, {high}"
    "{units:?; {units:units}}): directions {searched:?that the moments leave open }rest on their being about equal",
    "not_finite": "numbers that cannot be computed from these tables are null in result.json: {places:few 3}; columns "
    "that are constant or functions of each other are the usual reason, or noise where a weight is withheld",
}

# Parts of a search that change nothing of its graph, and what is lost if they end early.
AFTER_THE_SEARCH: Mapping[str, str] = {
    "bootstrap": "how sure its edges are was not looked at to the end",
    "without one site each": "whether it hangs on one site was not looked at to the end",
    "searching without prior knowledge": "whether the tables contradict what was known beforehand was not looked at",
}

DATA_QUALITY: Mapping[str, str] = {
    "means_far_from_zero": "means of {variables:quoted 5} further from zero than the standard deviation (at {sites:few "
    "5}), and regressions have no intercept: directions and weights may be wrong",
    "looks_categorical": "few whole values of {variables:quoted 5} look like categories (at {sites:few 5}); weights "
    "take them as quantities",
    "looks_like_a_code": "numbers of {variables:quoted 5} look like a code of a missing value, such as 999 (at "
    "{sites:few 5}); here they count as values: say `missing = [...]` in that site's columns.toml if they are not",
    "copied_records": "many records have an equal one (at {sites:few 5}), and copies count as independent records: "
    "edges and intervals are then not to be trusted; keep each record once, unless equal records are different people",
    "numbers_rows": "whole numbers of {variables:quoted 5} occur once each (at {sites:few 5}), as row numbers and "
    "identifiers do: such a column may get edges, and they mean nothing; leave it out",
    "rows_of_groups": "rows of {count} groups count as independent records, which they are not (at {sites:few 5}): "
    "intervals are too narrow, and edges and arrows may be false; within = 'between' in the data dictionary makes each "
    "group one record",
    "near_bounds": "released mean squares of {variables:quoted 5} above half of their feature_bounds: values are cut "
    "off there, or lie far from zero, and regressions have no intercept",
    "constant_at_a_site": "{variables:quoted 5} with one value in all rows (at {sites:few 5}), but not elsewhere: ask "
    "how it is coded there; what the graph says about it comes from the other sites, and from the difference between "
    "them",
    "other_spread": "standard deviations of {variables:quoted 5} (at {sites:few 5}) at least 5 times as large or as "
    "small as at every other site: perhaps another unit or coding, or a value that stands for a missing one",
    "same_numbers": "{sites:few 5} sent exactly the same numbers as another site, as copies of one table do: its rows "
    "then count twice, and intervals are too narrow",
    "in_one_direction": "records point in one direction more than centred Gaussian ones would, by the moments "
    "released: means may lie far from zero, and regressions have no intercept; `fedbnsl participant check` tells each "
    "site",
}

UNUSED: Mapping[str, str] = {
    "constant": "{names:few}: one value in all rows that are used, so that nothing can be learned about "
    "{one:?it|them}: no edge",
    "no_row": "level {names:few}: in no row that is used, and left out",
    "reference": "level {names:few}: its variable's first level is in no row that is used, or at no site together with "
    "another; this one takes its place as the level that coefficients compare the others with",
    "hidden": "{names:few}: the noise of privacy hides how much {one:?it varies|they vary}, so that no edge there is "
    "told; narrower ranges, known beforehand and not from these tables, more rows or a larger epsilon would tell",
    "hidden_level": "level {names:few}: so rare that the noise of privacy hides it, or that fewer than about "
    f"{FEW_ROWS} rows have it; left out, so that coefficients compare the others with the first level and the rare "
    "ones together",
    "within_sites": "level {names:few}: how often it occurs at each site follows from other levels; left out",
}

_CHECKS: Mapping[str, str] = {
    "linear_gaussian": "effects are linear, noise is Gaussian, and no common cause of two variables is missing",
    "bent": "effects of {names:quoted 8} bend (`curves` in result.json), so that their weights and effects are those "
    "of straight lines through curves{short:?, with intervals that may be too short|}; "
    "{straight:?those of {straight:quoted 8} are told along curves, too, but straight lines fit them; |}"
    "{gaps:?the graph and the curves are those of the {rows:,} rows without a missing value, weights of all rows; |}"
    "all other effects are linear, effects add up, noise is Gaussian, and no common cause of two variables is missing",
    "by_counts": "nothing about how a category depends on its parents: records of each combination of levels were "
    "counted{rows:?, of the {rows:,} rows without a missing value|}, so that probabilities are in tables "
    "(`categories` in result.json), and weights, intervals and effects are those of straight lines between levels; no "
    "common cause of two variables is missing",
    "not_counted": "straight lines describe how categories depend on each other: {names:quoted 8} {one:?is|are} no "
    "{one:?category|categories} of at most 70 levels, and records are counted only where all variables are",
    "gaps_not_counted": "straight lines describe how categories depend on each other: records of each combination of "
    "levels are counted only among rows without a missing value, and {why}",
    "withheld_not_counted": "straight lines describe how categories depend on each other: sites withhold the counts of "
    "some combinations of levels",
    "tables_chosen": "grades need not act by straight lines: the counts are described in fewer bits by the graph and "
    "the tables of counts, {tables:,}, than by the graph of straight lines and straight effects of grades, {lines:,}",
    "lines_chosen": "straight lines describe how levels depend on each other: the graph of straight lines and "
    "straight effects of grades describe the counts in {lines:,} bits, the graph and the tables of counts in "
    "{tables:,}",
    "private_not_counted": "straight lines describe how categories depend on each other: a private run counts no "
    "records of combinations of levels",
    "missing_at_random": "values are missing at random: whether one is missing may depend on the values that are "
    "there, and on nothing else",
    "left_out_untested": "whether the {rows:,} rows that were left out, as they lack a value, are like those that "
    'were used, and so whether these are a biased sample (`preparation.missing = "em"` uses all, and compares them)',
    "outlying_untested": "whether values lie so far from all others that they are slips or codes of missing values "
    '{em:?(only `preparation.missing = "em"` looks for them)|(`preparation.outlying = "missing"` looks for '
    "them)}",
    "complete_cases_untested": "complete cases would have been {complete:,} of {rows:,} rows; whether these are a "
    "biased sample was not tested, as {groups:?rows of a group are not independent"
    f"|no site has {LEAST_ROWS} rows with a value and as many without}}",
    "complete_cases_alike": "complete cases would have been {complete:,} of {rows:,} rows, and as far as means show, "
    "no biased sample: of {tests:counted mean|means} compared between rows with and without another value, none "
    "differs beyond chance",
    "complete_cases_biased": "complete cases would have been {complete:,} of {rows:,} rows, and a biased sample: "
    "beyond chance, {differ:few 3}",
    "rows_differ": "rows without {name!r} differ in {others:quoted 2}",
    "mean_zero": "every variable has mean zero at every site: regressions have no intercept",
    "same_network": "every site has the same network{own_means:?, with means of its own}",
    "equal_variances": f"noise variances are equal{{units:? {{units:units}}}}: {_LEFT_OPEN}it",
    "no_variances": "nothing about noise variances: an edge is directed where the data or knowledge tell the direction",
    "no_cancelling": "effects along several paths between two variables do not cancel",
    "knowledge": "the plan's knowledge is true: {given:few}",
    "set_at_sites": "the plan is right about what was set by design: {told:few 4}",
    "set_at_site": "{variables:quoted 4} at {site}",
    "rows_alike": "any two rows of one {group!r} depend on each other alike, however far apart they are",
    "nothing_lasts": "{group:?those whom {group!r} tells apart differ|the series of different sites differ} by nothing "
    "that lasts and is not in the table: a lasting trait acts like a common cause that no table has",
    "tests_residuals": "whether residuals are correlated beyond chance where there is no edge{hidden:? (not of "
    "{hidden:quoted 4}: the noise of privacy hides {one:?it|them})}{least:? (the noise of privacy hides correlations "
    "below about {least:.2g})}",
    "tests_sites": "whether the sites' coefficients differ{untested:? (not of {untested:few 4}: {why})}",
    "tests_tables": "whether sites have the same shares of levels, given the parents, where records are enough"
    "{few:? (not of {few:quoted 4})}",
    "tests_variances": "whether noise variances are equal",
    "tests_knowledge": "whether a graph without the plan's knowledge fits better",
    "residuals_untested": "whether residuals are correlated where there is no edge{hidden:?, as the noise of privacy "
    "hides {hidden:quoted 4}}",
    "sites_untested": "whether the sites' coefficients differ: {why}",
    "no_family_twice": "no two sites have all variables of a family (a variable and its parents)",
    "families_untested": "whether the sites' coefficients differ at {families:few 8}: fewer than two sites have all of "
    "these variables",
    "family": "{child!r} given {parents:quoted 8}",
    "sites_uncompared": "whether each site agrees on every variable: {lacking:few 8}",
    "site_lacks": "{site} has no value of {names:quoted 4}",
    "site_lacks_pairs": "{site} has no row with both {pairs:few 2}",
    "ratios_tested_in_part": "whether all sites have all ratios of {names:quoted 4}: some parents, or levels, hardly "
    "vary at some sites",
    "no_moments_of_sites": "the coordinator has no moments of several sites to compare",
    "too_few_events": "too few rows of a site are expected to have the rarer value{functions:?, or a variable is a "
    "function of others}",
    "hidden_causes": "common causes that no table has, which add edges and turn arrows{told:?: if there may be some, "
    "{held} of {n:counted link} say that one variable acts on another|}",
    "hidden_causes_in_noise": "common causes that no table has, which add edges and turn arrows: noise hides "
    "correlations below {hides:.2f}, and so what holds if there are some",
    "hidden_causes_excluded": "no common cause of two variables is missing from the tables, as the plan says "
    '(`hidden_causes = "excluded"`): arrows and effects hold only then',
    "acts_on": "{a!r} acts on {b!r}",
    "acts_on_or_hidden": "{a!r} acts on {b!r}, or both have a hidden cause",
    "link_untested": "{a!r} and {b!r} may be linked or not: no test tells",
    "hidden_cause": "{a!r} and {b!r} have a hidden cause",
    "linked": "{a!r} and {b!r} are linked; the data do not tell how",
    "not_linear": "effects that are not linear",
    "not_linear_of_levels": "effects that are not linear, of or on variables with levels",
    "tests_curves": "whether straight lines describe how numbers depend on each other ({pairs:counted pair}, none of "
    "them a number with what the graph says it acts on: an arrow that is drawn the wrong way round can hide its curve; "
    f"a curve counts if it explains {LEAST_SHARE:.0%} or more of what the graph leaves of a variable)",
    "tests_noise": "whether noise has a shape that fits one direction alone of {edges:counted edge} that second "
    "moments leave open{part:? (told by sites with {share:percent} or more of the rows)|}",
    "noise_untested": "the shape of noise at {edges:counted edge|edges} that second moments leave open: an end holds "
    "levels, counts or few different values at sites with more than half of the rows, rows without a gap do not stand "
    "for all, or there are too many graphs",
    "noise_not_asked": "which directions the shape of noise tells: {groups:?rows of a group are not independent|sums "
    "over all sites have no robust rule, which the plan's consensus asks for}",
    "fits_neither": "{one} -- {other}{by:? ({by} it would be {source} -> {target})}",
    "noise_fits_neither": "no straight line with independent noise describes {edges:few 4}, in either direction: a "
    "common cause is hidden, the effect bends, rows depend on each other, or an edge nearby is missing; no direction "
    "there is to be trusted",
    "curves_not_searched": "whether a graph with curved effects is better: {why}",
    "inherited_bends": "which of {names:quoted 8} bend by themselves: what a curve has made skewed may bend, too, and "
    "edges at such a variable may be false",
    "private_curves_untested": "whether effects are straight lines: this private run looks for no curves, and "
    "misses effects that only a curve shows",
    "private_parabolas_only": "whether effects are lines or parabolas: a private run looks for no other curves",
    "curves_untested": "whether effects are straight lines: {groups:?rows of a group are not independent|sums over all "
    "sites have no robust rule, which the plan's consensus asks for}",
    "curves_of_pairs_untested": "whether straight lines describe {pairs:counted other pair} of numbers: too few rows "
    "of a site have both, they are far apart in the graph, or one of them has hardly more than two values",
    "curved": "straight lines{drawn:?, and the curves that were found,} do not describe {curves:few 4}: "
    "{drawn:?a jump, or effects that do not add up, look so; }edges there may be missing, and others be there in their "
    "place; effects and directions that rest on them{drawn:?, along the curves, too,} are not to be trusted, nor are "
    "their intervals. A transform of the data dictionary may make such lines straight; for a U or a jump, make a "
    "column of levels at the sites, such as low, normal and high"
    "{gaps:?. (Where values are missing by what the other variable is, a line looks curved, too)}",
    "curved_or_open": "straight lines with Gaussian noise do not describe {curves:few 4}: effects there are curved, or "
    "noise is not Gaussian, and an edge that the data leave open has the other direction"
    "{gaps:?; where values are missing by what the other variable is, a line looks curved, too}",
    "curve": "how {target} depends on {source} (a curve explains a further {share:percent} of it{apart:?; no edge})",
    "levels": "whether linear effects and Gaussian noise fit {variables:quoted 4}, whose values are levels: they do so "
    "roughly at best",
    "dependent_rows": "{lags:?rows that depend on more than the row before|rows that depend on each other, such as "
    "several of one {family:?family|person}}",
    "chosen_rows": "rows that were chosen by what the variables say",
    "independent_rows": "rows that depend on each other, such as several of one person",
    "no_lines": "whether pairs without an edge are dependent: straight lines between categories would give false "
    "alarms",
    "shared_records": "records that several sites have (only equal numbers of whole tables are looked for, where sites "
    "send exact moments of measured variables)",
    "functions": "{names:few 12} are functions of each other{levels:?, at least in some levels,} but for rounding, "
    "such as a sum, a code or another unit: edges, directions and effects among them and next to them are arbitrary; "
    "leave one of them out{levels:? or merge such levels}, and run again",
    "nearly_functions": "{names:few 12} are nearly functions of each other (less than a thousandth of their variation "
    "is left): small errors of measurement decide edges and directions among them, which are arbitrary; leave all but "
    "one of them out, or replace them by one, and run again",
    "levels_of": "{name!r} (level{several:?s} {levels:quoted 4})",
    "variances_differ": f"residual variances differ {_BEYOND_CHANCE}, by a factor of up to {{ratio:.3g}} ({{low}}, "
    f"{{high}}{{units:?; {{units:units}}}}; {{chance}}): {_LEFT_OPEN}their being equal",
    "sites_differ": f"sites differ {_BEYOND_CHANCE} in the coefficients of {{edges:few 4}}: there the graph tells a "
    "mean of what differs{told:?, as it must where the plan says that something was set ({told:few 4})|}",
    "mechanisms_differ": "sites differ more than chance gives in how variables follow from their parents: "
    "{mechanisms:few 4}; there the graph tells a mean of what differs",
    "mechanism_differs": "{site}: the mechanism of {variable} differs ({changes:few 4})",
    "mechanism_change": "{of:?slope of {of}|residual variance} {here:.3g} against {elsewhere:.3g} elsewhere",
    "directions_contradict": "directions contradict each other ({says:few 6}): neither is told, as a hidden common "
    "cause or an effect that is not linear is as likely",
    "tests_directions": "whether sites that differ tell the direction of {n:counted edge|edges} that second "
    "moments leave open",
    "directions_too_many": "whether sites that differ tell the direction of {n:counted more edge|more edges}: there "
    "are too many graphs to compare",
    "directions_untested": "whether sites that differ tell directions that second moments leave open: this "
    "{privacy:?needs exact moments of each site, and the run is private|}"
    "{consensus:?needs moments of all sites, and the plan has a robust consensus|}"
    "{preparation:?needs columns about each site's own means, and weights by rows|}"
    "{groups:?needs independent rows|}{levels:?takes continuous variables alone|}{gaps:?takes rows without a gap|}"
    "{curves:?takes straight lines for effects, and some bend|}"
    "{few:?takes two sites or more that tell fourth moments, and at most 200 variables|}",
    "tables_differ": "sites differ more than chance gives in how often levels of {children:few 4} occur, given the "
    "parents: the tables are of all records together, and an edge there may stand for nothing but a difference between "
    "sites",
    "ratios_differ": "sites differ more than chance gives in the ratios of {children:few 4}: those told are a mean of "
    "what differs",
    "child_p": "{child!r} ({chance})",
    "sites_differ_apart": f"sites differ {_BEYOND_CHANCE} in how {{pairs:few 4}} vary together, which have no edge: "
    "some sites may have one",
    "no_variance_left": "{one} and {other}, which have no edge, vary together by more than is left of their variances: "
    "one of them is nearly an exact function of other variables, or too small to be told from noise; what the graph "
    "says about it is arbitrary",
    "unexplained": f"residuals of {{one}} and {{other}}, which have no edge, are correlated by {{r:.2g}}, "
    f"{_BEYOND_CHANCE}{{many:?; so are {{others}} more such pairs}}{{single:?; so is one more such pair}}",
    "reason_sites": "{site:?{site} alone differs: another practice or other patients there (each site's own "
    "coefficients say how, and belong beside the common ones){told:?, as the plan says ({told})|, or another code, "
    "unit or device: look at its table, and correct it or run again without it}|practice, devices or patients differ "
    "between sites: each site's own coefficients are in the result}",
    "reason_rows": "rows depend on each other, such as several of one person{widely:?: most coefficients seem to "
    "differ a little between sites|}; a column of kind 'group' in the data dictionary says whose they are"
    "{alike:? (but {others:?most |}coefficients of sites scatter by no more than chance, which speaks against it)|}",
    "reason_far": 'values far from all others, such as codes of missing values; `outlying = "missing"` leaves them out',
    "reason_curves": "effects that are no straight lines{seen:?, as the test of lines says|; `look_for_curves` would "
    "tell}",
    "reason_edge": "{allowed:?a faint edge{hidden:?, for the noise of privacy hides such: fewer variables, narrower "
    "ranges in the data dictionary, more rows or a larger epsilon would show it|}|an edge that the plan forbids}",
    "reason_hidden": "a common cause that no table has{pairs:? (the data tell one of {pairs:few 4})|}; if you can "
    "think of one that was measured, take it into the tables",
    "knowledge_does_not_fit": "the plan's knowledge does not fit the data: without it, the logarithm of the likelihood,"
    " less what edges cost, would be larger by {cost:.3g} (more than {limit:g} is not by chance)"
    f"{{instead:?; without it, the data give {{instead:few 4}}}}{_BENDS_ACCUSE}",
    "knowledge_cancels": "the plan's knowledge fits the data only if effects along several paths cancel: a graph "
    "without it has fewer edges (better by {cost:.3g}), and with edges between the same variables alone, the logarithm "
    "of the likelihood is smaller by {same_pairs:.3g} with this knowledge"
    f"{{instead:?; without it, the data give {{instead:few 4}}}}{_BENDS_ACCUSE}",
}

_RATIOS: Mapping[str, str] = {
    "ratios_consensus": "no ratios: sums over all sites, which they come from, have no robust rule "
    "(`consensus` other than mean)",
    "ratios_groups": "no ratios: rows of a group are not independent, so that intervals would be too short, and means "
    "over a group are no levels or counts",
    "ratios_too_wide": "no ratios: {n} coefficients, and all that is sent is bounded (at most {most} of one variable); "
    "merge levels",
    "ratios_inconsistent": "no ratios: the numbers of {site} contradict each other; look at what it runs",
    "ratios_unsettled": "no ratios: the estimates had not settled after {rounds:counted round|rounds} "
    "(`regressions_rounds`)",
    "ratios_no_rows": "no ratios: at no site that tells of it does {child!r} vary among rows without a gap in it and "
    "its parents",
    "ratios_ordinal": "of a level above any given one, against the levels up to it (proportional odds)",
    "ratios_ridge": "with a ridge: levels are completely or nearly separated, so that these rows bound some ratio on "
    "one side only; a normal prior (standard deviation {deviation:g} of the logarithm, by a level or by one "
    "standard deviation) does it on the other",
    "regression_open": "the direction between {child!r} and {parents:quoted 4} is open: the number is that of one of "
    "the possible graphs",
    "differences_transformed": "a difference of {measure}, as the data dictionary transforms it",
    "ratios_not_identified": "some are not told: their columns are functions of others, or do not vary where {child!r} "
    "does",
    "ratios_of_rows": "rests on the {rows:,} of {of:,} rows that have no gap in this family, at sites where it varies "
    "and that tell of it",
    "ratios_of_sites": "rests on {sites:few 8} alone",
    "ratios_by_site": "sites differ{odd:?; without {odd} the others agree}. For {source}, ratios of {target}: "
    "{sites:few 8}",
    "ratio_of_site": "{site} {known:?{estimate:.2f} ({low:.2f} to {high:.2f})|about {estimate:.2f}}",
    "ratios_overdispersed": "counts vary {times:.3g} times as much as Poisson's: intervals are widened by the root of "
    "that (quasi-Poisson)",
}

_TAKEN: Mapping[str, str] = {
    "taken": "{form}{reference:?, one for each level but {reference!r}|}{averages:?, averaged over a group|}"
    "{ratios:?; {ratios}s by its parents|}{curves:?; changes along curves with {curves:quoted 4}|}"
    "{far:?; {far:counted value} far from all others counted as missing|}",
    "taken_as_all_are_categories": "all variables are categories: records of each combination of levels were counted",
    "taken_as_levels": "{kind} in the data dictionary{not_counted:?; not counted, as {not_counted}|}",
    "taken_tables_chosen": "all variables have levels, and tables of counts describe them in fewer bits than straight "
    "effects of grades: {tables:,} against {lines:,}",
    "taken_lines_chosen": "straight effects of grades describe the counts in {lines:,} bits, tables in {tables:,}",
    "taken_not_counted": "not all variables are categories",
    "taken_gaps_not_counted": "rows with a missing value are too many, or unlike the others",
    "taken_withheld_not_counted": "sites withhold counts",
    "taken_private_not_counted": "the run is private",
    "taken_by_shape": "shape = {shape!r} in the data dictionary",
    "taken_by_fit": "{square:?its square explains|lines with bends at knots explain} {curve:?more of another number|"
    "hardly more of any number that it may act on} than a straight line does",
    "taken_unseen": "no curves were looked for: {why}",
    "no_curves_noise": "the noise of privacy is too large for it, or there are too many numbers",
    "no_curves_absent": "sites lack variables, and the run is private",
    "no_curves_found_out": "{few:?there are too few rows|}{none:?no number may bend|}"
    "{many:?there are too many numbers|}"
    "{withheld:?sites send no sums over few rows, or a column is constant in the rows of those that do|}",
    "unfit": "{few:?too few rows have no missing value|}{differ:?rows with a missing value differ from the others|}"
    "{columns:?at a site no row has all variables|}{lacked:?some site lacks {names:quoted 8}, which would have to be "
    "left out of the dictionary|}{unknown:?rows with a missing value were not compared with the others|}",
    "no_curves_yet": "the run ended before",
    "no_curves_levels": "there are fewer than two numbers",
    "no_curves_consensus": "sums over all sites have no robust rule, which the plan's consensus asks for",
    "no_curves_groups": "rows of a group are not independent",
    "no_curves_planned": "the plan does not ask for it",
}

_EFFECTS: Mapping[str, str] = {
    "effect_not_known": "not known: {why}",
    "effect_of_lines": "be careful: effects of {names:quoted 8} bend, and this one is that of straight lines through "
    "the curves{drawn:?; --change A B gives the effect of a change from A to B along them|}",
    "effect_no_curve": "effects of {names:quoted 8} bend, and the run tells no total effect along these curves "
    "(`curves.effects` in result.json and the page have the curve along each edge)",
    "effect_along_curve": "along a curve, {source} counted from the mean of its site: a "
    "mean over all that lies between {source} and {target}. It holds if effects of {source} and of what was adjusted "
    "for add up{interval:?; the interval takes the scatter about the curve for even|}",
    "effect_beyond_knots": "be careful: beyond {low:.4g} to {high:.4g}, the curve is its last piece drawn on",
    "effect_by_tables": "by the tables of levels: changes of {of_grades:?the mean grade of {of_grades!r}|a level's "
    "probability}{from_grades:?, from the first to the last grade of {from_grades!r}, for each step between them|}"
    "{left_out:?; combinations of levels that no record has, {left_out:.2%} of all at most, are left out}. Intervals "
    "are those of {draws} draws of these tables, given the graph",
    "if_hidden_identified": "if common causes may be hidden: identified by adjusting for {some:?{given:few}|nothing}"
    "{drawn:?, which {share:percent} of the bootstrap draws allow|; how many bootstrap draws agree was not counted}"
    "{sized:?|; its size is not told, since {tables:?levels were counted|no curve is adjusted for this}}"
    "{other:?. If no cause is hidden, other variables are adjusted for below, so that numbers may differ|}",
    "if_hidden_no_path": "if common causes may be hidden: no path{drawn:? in {share:percent} of the bootstrap draws|; "
    "how many bootstrap draws agree was not counted}: whatever is hidden, {source} does not act on {target}, unless by "
    "an effect that is too faint for these rows{lines:? or has no linear part (a U, say)|}",
    "if_hidden_open": "if common causes may be hidden: not identified, since the marks leave open whether {a!r} acts "
    "on {b!r}; the numbers here hold only if none is",
    "if_hidden_invisible": "if common causes may be hidden: not identified. {a!r} acts on {b!r}, but a hidden cause of "
    "both may add to what the two have in common; the numbers here hold only if there is none",
    "if_hidden_no_set": "if common causes may be hidden: not identified, since adjusting for variables of the table "
    "does not remove what else links the two; the numbers here hold only if none is",
    "if_hidden_draws": "if common causes may be hidden: not identified, since only {share:percent} of the bootstrap "
    "draws allow what the marks say; the numbers here hold only if none is",
    "if_hidden_functions": "if common causes may be hidden: not identified, between functions of each other",
    "if_hidden_illegal": "if common causes may be hidden: not known, since the marks contradict each other, or not all "
    "links could be tested; the numbers here hold only if none is",
    "if_hidden_unseen": "if common causes may be hidden: not known, since it rests on variables that no row has "
    "together",
    "if_hidden_missing_edges": "if common causes may be hidden: not known, since it rests on variables that depend on "
    "each other more than the marks explain, which have no link there",
    "if_none_hidden": "holds only if no common cause is hidden{excluded:?, as is assumed|: the run does not tell what "
    "holds otherwise}",
    "effect_together_by_lines": "by straight lines between levels: tables are not used for variables that are set "
    "together",
    "effect_without_records": "more than {share:percent} of what would happen rests on combinations of levels that no "
    "record has",
    "effect_unseen": "no row has a value of both {pairs:few}, and whether there is an effect rests on "
    "{one:?this pair|these pairs}",
    "effect_missing_edges": "{pairs:few} depend on each other more than the graph explains, which has no edge there: "
    "whether there is an effect rests on {one:?this pair|these pairs}",
    "effect_misses_edges": "not identified: {pairs:few} depend on each other more than the graph explains, which has "
    "no edge there. {one:?One|Edges} would open another way from {source} to {target}, or confound the two",
    "effect_change_not_described": "straight lines do not describe how {pairs:few 4}, and the run has no curve there"
    "{why:? ({why})|}; a run without the variables whose gaps stand in the way (--columns), or with a column of levels "
    "in place of the number, may tell it",
    "effect_of_lines_alone": "straight lines alone: {why}; an effect along a curve (a U, say) would not be seen",
    "effect_of_functions": "not identified: the direction between {names:quoted} is open: they are functions of each "
    "other, and the tables cannot tell which of them moves which",
    "effect_beside_functions": "not identified: the direction of {arrows:few} is open, between functions of each "
    "other, and this effect rests on it",
    "effect_undecided": "not identified: the direction of {arrows:few} is open: less than {majority:percent} of the "
    "bootstrap draws agree with it, and this effect rests on it",
    "effect_open": "not identified: the direction between {source} and {target} is open: the bootstrap draws do not "
    "agree with the best graphs",
    "effect_open_path": "not identified: whether a directed path leads from {source} to {target} is open: "
    "{share:percent} of the bootstrap draws have one, and none of the best graphs",
    "effect_no_path": "no path: in none of the best graphs does a directed path lead from {source} to {target}; an "
    "effect that is too faint for these rows{lines:? or has no linear part (a U, say)|} would look the same",
    "effect_open_no_path": "in none of the best graphs does a directed path lead from {source} to {target}, but "
    "others may have one",
    "effect_open_values": "the graphs that fit best give {n:counted effect}, and others may give others",
    "effect_withheld": "withheld: noise took it, or a coefficient that it rests on, beyond what is possible",
    "effect_identified": "identified: every graph that fits as well (the equivalence class) gives the same effect",
    "effect_range": "a range: the graphs that fit equally well (the equivalence class) give {n} different "
    "effects, all of the same sign",
    "effect_not_identified": "not identified: the graphs that fit equally well (the equivalence class) give {n} "
    "different effects{signs:?, whose signs differ}{absent:?; 0 is among them: in some "
    "graphs no directed path leads from {source} to {target}}",
    "effect_if_none_hidden": "if no common cause is hidden: {words}",
    "effect_of_column": "of {source} on {target}, {words}",
    "least_drawn": "of the edges that this rests on, {source} {mark} {target} is in the fewest bootstrap draws: in "
    "{share:percent} of {draws}",
    "other_ways": "not in the graph, but in some of the {draws} bootstrap draws, and there perhaps another way from "
    "{source} to {target}: {ways:few 3}",
    "way_drawn": "{source} and {target} are linked in {share:percent}",
    "paths_drawn": "directed edges lead from {source!r} to {target!r} in {forward:percent} of the {draws} bootstrap "
    "draws, from {target!r} to {source!r} in {backward:percent}",
    "levels_as_numbers": "levels: {levels}",
    "no_draws": "how sure the directions are is not known: the run has no bootstrap draws",
    "no_intervals_functions": "no intervals: they would hold only if the direction were known",
    "no_intervals_not_described": "no intervals: the data contradict how {pairs:few 4}, as it is taken here, and no "
    "interval counts that",
    "no_intervals_missing_edges": "no intervals: none counts that an edge is missing",
    "no_intervals_lines": "no intervals: the scatter about a line through a curve is uneven, and no interval of a "
    "total effect counts that",
    "no_intervals_unknown": "no intervals: the run does not say what its coefficients were estimated from",
    "no_intervals_together": "no intervals: they are not computed for variables that are set together",
    "by_assumption": "{n:counted edge has its direction|edges have their directions} by the assumption of equal noise "
    "variances alone; without it, the effect may be another",
    "withheld_coefficients": "the run withholds the coefficient of {edges:few}: effects and intervals that rest on it "
    "are not told, and numbers without units take the nearest possible value",
    "faint_effects_hidden": "be careful: the noise of privacy hides faint edges{absent:?, and an effect along one "
    "would be missed|, and with one of them this effect may be another, or its arrows point the other way}",
    "effect_clipped": "be careful: records are clipped before their moments are released, so that effects on or "
    "through {variables:quoted 8} come out too large or too small; take the sign from them, not the size",
    "doubt": "be careful: {doubt}",
    "doubts_elsewhere": "be careful: the data also contradict what is assumed of {names:quoted 8}, which this effect "
    "does not pass through; its arrows may rest on them all the same. The summary of the run, its page and --json say "
    "how",
}

_OUTER_BAR = re.compile(r"\|(?![^{}]*\})")  # not one within a field of the two texts
_TEMPLATES: Mapping[str, str] = {**_WARNINGS, **DATA_QUALITY, **UNUSED, **_CHECKS, **_RATIOS, **_TAKEN, **_EFFECTS}


@dataclass(frozen=True)
class Note:
    """Something to tell: a code of this module's templates, and the numbers and names that its template has."""

    code: str
    numbers: Mapping[str, Any]


def note(code: str, /, **numbers: Any) -> Note:
    """A note of one of the codes above."""
    return Note(code, numbers)


def sentence(told: Note) -> str:
    """The words of a note, without a capital and a full stop."""
    return _filled(_TEMPLATES[told.code], told.numbers)


def in_words(content: Any) -> Any:
    """JSON-ready content in which each note has become its sentence."""
    if isinstance(content, Note):
        return sentence(content)
    if isinstance(content, dict):
        return {key: in_words(value) for key, value in cast(dict[str, Any], content).items()}
    if isinstance(content, list | tuple):
        return [in_words(one) for one in cast(Sequence[Any], content)]
    return content


def whole(text: str) -> str:
    """A sentence with a capital and one full stop."""
    text = text.rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."


def checks_in_words(verdict: Mapping[str, Any]) -> list[str]:
    """What of the assumptions was tested and not contradicted, what was not or cannot be, and complete cases."""
    tested, not_tested, not_testable = verdict["tested"], verdict["not_tested"], verdict["not_testable"]
    held = " None of these tests contradicts what is assumed." * (not verdict["contradicted"])
    if seen := verdict["hidden_causes_seen"]:
        held += f" But the marks contradict that no common cause is missing: one seems to act on {first_few(seen)}, so "
        held += "that arrows, weights and ratios there are not to be believed."
    parts = [f"Tested: {'; '.join(tested)}.{held}" if tested else "Whether the data contradict it was not tested."]
    if tested is None:  # an older result does not say
        parts = []
    if not_tested:
        parts.append(f"Not tested: {'; '.join(not_tested)}.")
    if tested != []:
        parts.append(f"Not testable: {'; '.join(not_testable)}.")
    return [*parts, *map(whole, verdict["complete_cases"])]


def directions_in_words(verdict: Mapping[str, Any]) -> str:
    """What directed how many edges, and how sure that is."""
    counts, draws = {**dict.fromkeys(DIRECTED_BY, 0), **verdict["directed_by"]}, verdict["draws"]
    if not any(counts.values()):
        return ""
    further = [who for who in get_args(Source) if counts[who]]
    by = [f"{DIRECTED_BY[who]}: {counts[who] or 'none'}" for who in ("data", "knowledge", *further, "assumption")]
    words = f"Directed {by[0]} of {counted(sum(counts.values()), 'edge')}; {'; '.join(by[1:])}."
    if counts["untested"]:
        words += f" Not tested, as the run ended before its search: {counts['untested']}."
    if counts["nobody"]:
        words += f" Without a direction, as the data leave it open: {counts['nobody']}."
    if counts["undecided"]:
        few = f"less than {100 * verdict['majority']:.0f} % of the draws agree"
        why = few if draws != 0 else "they tie functions of each other"
        words += f" Without a direction, as {why}: {counts['undecided']}."
    if draws is None or draws >= FEW_DRAWS or not (counts["data"] or counts["assumption"]):
        return words
    if not draws:
        return f"{words} How sure these directions are is not known: the run made no bootstrap draws."
    return f"{words} With {counted(draws, 'bootstrap draw')} alone, how sure these directions are is hardly known."


def taken_in_words(taken: Mapping[str, Mapping[str, Any]]) -> str:
    """How many variables were taken how, with names where it is not as straight lines."""
    names = {form: [name for name, one in taken.items() if one["form"] == form] for form in FORMS}
    parts = [
        f"{FORMS[form]}: {len(own)}{'' if form == 'line' else f' ({first_few(own, 4)})'}"
        for form, own in names.items()
        if own
    ]
    return "; ".join(parts)


OF_MARKS = {
    "-->": "acts on",
    "o->": "acts on, or both have a hidden cause",
    "<->": "a hidden cause",
    "o-o": "linked; the data do not tell how",
}
"""What the marks of two variables say, as people draw them."""


def hidden_causes_in_words(told: HiddenCauses) -> list[str]:
    """What holds if common causes may be hidden, by what is said of the pairs."""
    found: list[str] = []
    for marks, words in OF_MARKS.items():
        if pairs := [f"{one.source} {marks} {one.target}" for one in told.links if one.marks == marks]:
            found.append(f"{words}: {first_few(pairs)}")
    if told.legal is False and not told.untested:
        found.append("these marks contradict each other, so that no effect is told by them")
    if told.gone:
        found.append(f"no link: {first_few([f'{a} and {b}' for a, b in told.gone])}")
    if told.untested:
        untested = first_few([f"{a} and {b}" for a, b in told.untested])
        found.append(f"not testable, and so perhaps no link: {untested}; no other mark rests on it, no effect is told")
    return found


def _filled(template: str, numbers: Mapping[str, Any]) -> str:
    text = ""
    for literal, field, spec, conversion in Formatter().parse(template):
        text += literal
        if field is None:
            continue
        value, spec = numbers[field], spec or ""
        if spec.startswith("?"):
            yes, *no = _OUTER_BAR.split(spec[1:], maxsplit=1)
            text += _filled(yes if value else "".join(no), numbers)
        else:
            text += _shown(repr(value) if conversion else value, spec)
    return text


def _shown(value: Any, spec: str) -> str:
    """A number or names by one of the specs that this module's docstring lists, or by one of Python's."""
    kind, _, rest = spec.partition(" ")
    match kind:
        case "few":
            return first_few(map(in_words, value), int(rest or 8))
        case "quoted":
            return first_few(map(repr, value), int(rest or 8))
        case "counted":
            one, _, several = rest.partition("|")
            return counted(value, one, several)
        case "units":
            return UNITS[value]
        case "percent":
            return f"{100 * value:.0f} %"
        case _:
            return format(in_words(value), spec)
