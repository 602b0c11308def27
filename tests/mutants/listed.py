"""The faults, by room. Each must be noticed by the tests beside it."""

from __future__ import annotations

from tests.mutants.harness import Mutant

MUTANTS: list[Mutant] = []


def mutant(name: str, fault: str, old: str, new: str, *tests: str) -> None:
    """List a fault; `tests` are below tests/."""
    MUTANTS.append(Mutant(name, fault, old, new, tuple(f"tests/{test}" for test in tests)))


# Scores.
DELTA_ENERGY = "scores/test_delta_energy.py"
mutant(
    "scores.delta_energy._index_of_largest",
    "classes beyond the last full row of groups are left out of the arg max",
    "first = torch.maximum(maxima[:, :rest], similarities[:, size * _GROUPS :])",
    "first = maxima[:, :rest]",
    DELTA_ENERGY,
)
mutant(
    "scores.delta_energy._relative_to_first",
    "the rounding of s_(1)/τ is not undone",
    "shift = -scale * first - offset",
    "shift = torch.zeros_like(first)",
    DELTA_ENERGY,
)
mutant(
    "scores.delta_energy._closed_form",
    "the sum over the top c in place of their mean",
    "-terms.mean(dim=1)",
    "-terms.sum(dim=1)",
    DELTA_ENERGY,
)
mutant(
    "scores.delta_energy._closed_form",
    "the reset class keeps its own probability",
    "in_logs = torch.logaddexp(others, b - log_z)",
    "in_logs = others",
    DELTA_ENERGY,
)
mutant(
    "scores.delta_energy.delta_energy",
    "rows that need double precision keep single",
    "score[hard] = _closed_form(a, log_rest, (reset - first) / tau)",
    "pass",
    DELTA_ENERGY,
)
mutant(
    "scores.delta_energy.background_similarity",
    "the background counts the most similar class",
    " - similarities.amax(dim=1).sum(dtype=torch.float64)",
    "",
    "scores/test_fitted_delta_energy.py",
)
mutant(
    "scores.delta_energy.DeltaEnergy",
    "another τ by default",
    "tau: Positive = 0.01",
    "tau: Positive = 0.02",
    "scores/test_registry.py",
)
mutant(
    "scores.mcm.MCM",
    "another temperature by default",
    "temperature: Positive = 1.0",
    "temperature: Positive = 0.01",
    "scores/test_registry.py",
)
mutant(
    "scores.interneg.InterNeg",
    "fewer words by default",
    "count: Count = 2000",
    "count: Count = 1000",
    "scores/test_registry.py",
)
WORDS = "scores/test_delta_energy_words.py"
mutant(
    "scores.delta_energy_words.delta_energy_words",
    "the words are left out of the odds",
    " - torch.logsumexp(words / temperature, dim=1)",
    "",
    WORDS,
)
mutant(
    "scores.delta_energy_words.delta_energy_words",
    "the contrast grows with the number of names",
    "(torch.logsumexp(others, dim=1) - count.log())",
    "torch.logsumexp(others, dim=1)",
    WORDS,
)
mutant(
    "scores.delta_energy_words.delta_energy_words",
    "the best class is one of the others",
    "similarities.scatter(1, best.indices, -torch.inf)",
    "similarities",
    WORDS,
)
mutant(
    "scores.delta_energy_words.delta_energy_words",
    "the contrast is not weighted",
    "return odds + weight * contrast",
    "return odds + contrast",
    WORDS,
)
mutant(
    "scores.delta_energy_words.DeltaEnergyWords",
    "another weight by default",
    "weight: NonNegative = 8.0",
    "weight: NonNegative = 1.0",
    WORDS,
)
mutant(
    "scores.delta_energy_words.DeltaEnergyWords.compute",
    "the model's temperature is not used",
    "self.temperature or 1 / scorer.classifier.model.logit_scale",
    "self.temperature or 0.02",
    WORDS,
)
mutant(
    "scores.negatives.competing.competing_words",
    "classes, synonyms and kinds compete",
    "removed = remove_own(pool, classifier.classes)",
    "removed: dict[str, str] = {}",
    WORDS,
)
mutant(
    "scores.multi_delta_energy",
    "terms are not centred",
    " - mean) / deviation",
    ") / deviation",
    "scores/test_fitted_delta_energy.py",
)
mutant(
    "scores.multi_delta_energy.moments",
    "rounding counts as a deviation",
    "ROUNDING * term.abs().max()",
    "0 * term.abs().max()",
    "scores/test_fitted_delta_energy.py",
)
mutant(
    "scores.msp.msp",
    "the temperature multiplies",
    ".div_(temperature)",
    ".mul_(temperature)",
    "scores/test_logits.py",
)
mutant("scores.energy.energy", "the factor T is lost", "return temperature * ", "return ", "scores/test_logits.py")
mutant("scores.entropy.entropy", "the sign of the entropy", "return (", "return -(", "scores/test_logits.py")
mutant("scores.max_logit.max_logit", "the least similarity", ".amax(", ".amin(", "scores/test_logits.py")
mutant(
    "scores.react.react",
    "large entries are not clipped",
    "features.clip(max=bound)",
    "features",
    "scores/test_react.py",
)
mutant(
    "scores.react",
    "the percentile is taken as a share",
    ".numpy(), self.percentile)",
    ".numpy(), self.percentile / 100)",
    "scores/test_react.py",
)
mutant(
    "scores.knn._distances",
    "an image is its own neighbour",
    "closeness.masked_fill(itself, -torch.inf)",
    "closeness",
    "scores/test_knn.py",
)
mutant(
    "scores.mahalanobis.mahalanobis",
    "the length of a mean is left out when the nearest is sought",
    " - places.square().sum(dim=1)",
    "",
    "scores/test_mahalanobis.py",
)
mutant(
    "scores.mahalanobis.shrunk_covariance",
    "the covariance is not shrunk",
    "return (1 - share) * covariance",
    "return covariance",
    "scores/test_mahalanobis.py",
)
mutant(
    "scores.gl_mcm.GlMcm",
    "another λ by default",
    "weight: NonNegative = 1.0",
    "weight: NonNegative = 0.5",
    "scores/test_gl_mcm.py",
)
mutant(
    "scores.gl_mcm.local_mcm",
    "the mean patch in place of the best",
    ".amax(dim=1)",
    ".mean(dim=1)",
    "scores/test_gl_mcm.py",
)
mutant(
    "scores.neglabel.grouped_score",
    "the sum over the groups in place of their mean",
    "return total / groups",
    "return total",
    "scores/test_neglabel.py",
)
mutant(
    "scores.neglabel.NegLabelDeltaEnergy.compute",
    "negatives are not reset to s̃",
    "delta_energy.kernel(features[rows] @ negatives.T, self.tau, self.c, self.reset)",
    "delta_energy.kernel(features[rows] @ negatives.T, self.tau, self.c)",
    "scores/test_neglabel.py",
)
mutant(
    "scores.negatives.mining.select",
    "nouns and adjectives are ranked together",
    "[lowest(distance[:nouns], settings.keep), nouns + lowest(distance[nouns:], settings.keep)],",
    "[lowest(distance, settings.keep)],",
    "scores/negatives/test_mining.py",
)
mutant(
    "scores.negatives.mining.class_similarity",
    "the quantile is not interpolated",
    "torch.lerp(top[:, -1], above, fraction)",
    "top[:, -1]",
    "scores/negatives/test_mining.py",
)
mutant(
    "scores.negatives.taxonomy.own_words",
    "kinds of a class compete with it",
    "below.setdefault(synset, name)",
    "pass",
    "scores/negatives/test_taxonomy.py",
)
mutant(
    "scores.negatives.taxonomy.own_words",
    "class names compete with their class",
    "named.setdefault(key, name)",
    "pass",
    "scores/negatives/test_taxonomy.py",
)
mutant(
    "scores.interneg.select",
    "nouns and adjectives do not share the words by their numbers",
    "adjectives = count * far_adjectives // max(1, far_nouns + far_adjectives)",
    "adjectives = count // 2",
    "scores/test_interneg.py",
)
mutant(
    "scores.negrefine.NegRefine",
    "words are mined by the 0.95 quantile",
    "quantile: Share = 1.0",
    "quantile: Share = 0.95",
    "scores/test_negrefine.py",
)
mutant(
    "scores.negprompt.negprompt",
    "negatives are left out of the denominator",
    "torch.logsumexp(every, dim=1))",
    "torch.logsumexp(similarities, dim=1))",
    "classifiers/test_negprompt.py",
)
mutant(
    "scores.id_like.id_like",
    "the outliers' texts are subtracted without L",
    "torch.logsumexp(logit_scale * negatives, dim=1)",
    "torch.logsumexp(negatives, dim=1)",
    "classifiers/test_id_like.py",
)
mutant(
    "scores.lsn.lsn",
    "the nearest negative in place of the farthest",
    "msp.kernel(-negatives.flatten(0, 1), SOFTNESS)",
    "msp.kernel(negatives.flatten(0, 1), SOFTNESS)",
    "scores/test_lsn.py",
)
mutant(
    "scores.odin",
    "the gradient is climbed the wrong way",
    "moved = part - ",
    "moved = part + ",
    "scores/test_odin.py",
)

# Classifiers and their training.
mutant(
    "classifiers.base.Classifier.cross_entropy",
    "the logit scale is left out of the loss",
    "self.model.logit_scale * similarities",
    "similarities",
    "training/test_loop.py",
)
mutant(
    "training.recipe.Recipe.rate",
    "the cosine ends at the last epoch",
    "(reached - self.warmup_epochs) / self.epochs",
    "(reached - self.warmup_epochs) / (self.epochs - self.warmup_epochs)",
    "training/test_loop.py",
)
mutant(
    "classifiers.bayes_cal.BayesCal.stages",
    "weight decay pulls log σ",
    'undecayed=("log_sigma", "domain_log_sigma")',
    "",
    "training/test_loop.py",
)
mutant(
    "classifiers.bayes_cal.gaussian_divergence",
    "the variance is not doubled in the logarithm",
    "(2 * ratio).exp()",
    "ratio.exp()",
    "classifiers/test_bayes_cal.py",
)
mutant(
    "classifiers.cocoop.CoCoOpClassifier.initialise",
    "the first training image is the neutral one",
    "data.mean_features().mean(dim=0)",
    "data.mean_features()[0]",
    "classifiers/test_formulas.py",
)
mutant(
    "classifiers.locoop",
    "another K by default",
    "PAPER_TOP_K = 200",
    "PAPER_TOP_K = 100",
    "classifiers/test_formulas.py",
)
mutant(
    "classifiers.locoop.LoCoOpClassifier.__init__",
    "a quarter of few classes by default",
    "len(self.classes) // 2",
    "len(self.classes) // 4",
    "classifiers/test_formulas.py",
)
mutant(
    "classifiers.locoop.irrelevant_entropy",
    "patches that show the label count",
    "(entropy * irrelevant).sum()",
    "entropy.sum()",
    "training/test_loop.py",
)
mutant(
    "classifiers.maple.MapleClassifier.initialise",
    "maps begin at another scale than torch's Linear",
    "* width**-0.5",
    "* 0.02",
    "classifiers/test_maple.py",
)
mutant(
    "classifiers.negprompt.NegPromptClassifier.end_stage",
    "negatives are learned against the texts of before stage 1",
    "self.text_features = self.texts().detach()",
    "pass",
    "classifiers/test_negprompt.py",
)
mutant(
    "classifiers.negprompt.to_uniform",
    "the sum of the logits in place of their mean",
    "logits.mean(dim=1)",
    "logits.sum(dim=1)",
    "classifiers/test_negprompt.py",
)
mutant(
    "classifiers.gallop.Gallop",
    "validation without the learned projection",
    "needs_to_validate = needs_to_train",
    "needs_to_validate = frozenset({Need.FEATURES, Need.PATCHES})",
    "tuning/test_tune.py",
)
mutant(
    "classifiers.gallop.top_mean",
    "one patch too few",
    "min(k, similarities.shape[1])",
    "max(1, min(k, similarities.shape[1]) - 1)",
    "classifiers/test_gallop.py",
)
mutant(
    "classifiers.ebm.energy_change",
    "energies change sides",
    "return torch.logsumexp(plain / tau, dim=1) - torch.logsumexp(masked / tau, dim=1)",
    "return torch.logsumexp(masked / tau, dim=1) - torch.logsumexp(plain / tau, dim=1)",
    "classifiers/test_ebm.py",
)
mutant(
    "classifiers.ebm.keep_mask",
    "p is the share that is dropped",
    "round(p * product.shape[1], 9)",
    "round((1 - p) * product.shape[1], 9)",
    "classifiers/test_ebm.py",
)
mutant(
    "classifiers.ebm.Ebm.__call__",
    "the mean of the exponentials",
    ".mean().exp()",
    ".exp().mean()",
    "classifiers/test_ebm.py",
)
mutant(
    "classifiers.tip_adapter.TipAdapterClassifier.forward",
    "the cache is not divided by L",
    "cached / self.model.logit_scale",
    "cached",
    "classifiers/test_formulas.py",
)
mutant(
    "classifiers.clip_adapter.ClipAdapterClassifier.image_features",
    "the two shares change places",
    "alpha * adapted + (1 - alpha) * z",
    "(1 - alpha) * adapted + alpha * z",
    "classifiers/test_formulas.py",
)
mutant(
    "classifiers.croft.CroftClassifier.losses",
    "shifted images are drawn away from their class",
    '"−λ1 A": -weight',
    '"−λ1 A": weight',
    "classifiers/test_croft.py",
)
mutant(
    "classifiers.croft.CroftClassifier.shift",
    "shifted features lose the image's own",
    "self.generator_map.T.to(features) + features)",
    "self.generator_map.T.to(features))",
    "classifiers/test_croft.py",
)
mutant(
    "classifiers.promptsrc.PromptSrcClassifier.losses",
    "KL is not divided by the classes",
    'kl if method.kl == "batch" else kl / len(self.classes)',
    "kl",
    "classifiers/test_promptsrc.py",
)
mutant(
    "classifiers.promptsrc.epoch_weights",
    "epochs are counted from 0",
    "torch.arange(1, epochs + 1, dtype=torch.float64)",
    "torch.arange(epochs, dtype=torch.float64)",
    "classifiers/test_promptsrc.py",
)
mutant(
    "classifiers.plot.PlotClassifier.losses",
    "half the sum is trained at L",
    "factor = 2 if",
    "factor = 1 if",
    "classifiers/test_plot.py",
)
mutant(
    "classifiers.plot.transport_plan",
    "rows have the columns' marginals",
    "return -rows - torch.logsumexp(scaled + g",
    "return -columns - torch.logsumexp(scaled + g",
    "classifiers/test_transport.py",
)
mutant(
    "classifiers.clap.ClapClassifier.initialise",
    "every class has the same multiplier",
    "sums / torch.bincount(labels, minlength=len(self.classes))",
    "sums.mean()",
    "classifiers/test_linear_probes.py",
)
mutant(
    "classifiers.task_res.TaskResClassifier.texts",
    "α is left out",
    "self.method.alpha * self.residual",
    "self.residual",
    "classifiers/test_task_res.py",
)
mutant(
    "classifiers.lp_plus_plus.solve",
    "α moves in every round",
    "number % ALPHA_EVERY == 0",
    "True",
    "classifiers/test_linear_probes.py",
)
mutant(
    "classifiers.linear_probe.fit_logistic",
    "the penalty is not divided by C",
    "weight / (c * count)",
    "weight / count",
    "classifiers/test_linear_probes.py",
)
mutant(
    "classifiers.id_like.select_crops",
    "outliers are the next best crops",
    "take(order[:, -count:])",
    "take(order[:, count : 2 * count])",
    "classifiers/test_id_like.py",
)
mutant(
    "classifiers.lsn.LsnClassifier.losses",
    "negatives are drawn to their class",
    "SCALE * (1 - negatives)",
    "SCALE * negatives",
    "classifiers/test_lsn.py",
)
mutant(
    "classifiers.dplclip.DplClipClassifier.domain_contexts",
    "one context for all domains",
    "contexts[own == e].mean(dim=0)",
    "contexts.mean(dim=0)",
    "classifiers/test_dplclip.py",
)
DEFAULTS = "classifiers/test_published_defaults.py"
mutant(
    "classifiers.promptsrc.PromptSrc",
    "texts are held less near by default",
    "text_weight: NonNegative = 25.0",
    "text_weight: NonNegative = 10.0",
    DEFAULTS,
)
mutant("training.recipe.Recipe", "another rate by default", "lr: Positive = 0.002", "lr: Positive = 0.02", DEFAULTS)
mutant("classifiers.ebm.Ebm", "another share by default", "p: PositiveShare = 0.6", "p: PositiveShare = 0.5", DEFAULTS)
mutant(
    "training.loop._StageRun._keep",
    "the worst epoch on validation is kept",
    "log.quality > self.logs",
    "log.quality < self.logs",
    "training/test_loop.py",
)
mutant(
    "training.checkpoints.CheckpointFolder._refuse_another_run",
    "what only the saved run has is not compared",
    "sorted({*saved, *self.identity})",
    "sorted(self.identity)",
    "training/test_checkpoints.py",
)
mutant(
    "tuning.prepare._views_of",
    "views of another seed are taken from the cache",
    "str(sample.seed), ",
    "",
    "tuning/test_views.py",
    "training/test_checkpoints.py",
)

# Metrics.
METRICS = "stats/test_metrics.py"
mutant(
    "stats.ranking.Kept._over_ood",
    "a tie counts as a whole pair",
    "2 * pairs + self._ties()",
    "2 * (pairs + self._ties())",
    METRICS,
)
mutant(
    "stats.ranking.Kept.fpr",
    "OOD images at the threshold are not counted",
    "self.ranks.reach_id[first]",
    "self.ranks.reach_id[first] - 1",
    METRICS,
)
mutant("stats.ranking.images_for_rate", "the rate is cut, not rounded up", "math.ceil(", "math.floor(", METRICS)
mutant(
    "stats.ranking.Kept.aupr_in",
    "precision counts OOD images alone",
    "every = kept + self.ood_above",
    "every = self.ood_above + 0 * kept",
    METRICS,
)
mutant(
    "stats.metrics._resamples",
    "one seed for every bootstrap",
    "np.random.default_rng(seed)",
    "np.random.default_rng(0)",
    METRICS,
)
mutant(
    "stats.metrics._resamples",
    "ID and OOD images are drawn alike",
    "yield draw(n_id, rows, id_rng), draw(n_ood, rows, ood_rng)",
    "yield draw(n_id, rows, id_rng), draw(n_ood, rows, id_rng)",
    METRICS,
)
mutant(
    "stats.metrics._estimate",
    "a one-sided interval",
    "(1 - confidence) / 2, (1 + confidence) / 2",
    "1 - confidence, confidence",
    METRICS,
)
mutant(
    "stats.metrics.proportion_estimate",
    "Wilson's centre is the share itself",
    "(share + z * z / (2 * total)) / (1 + z * z / total)",
    "share",
    METRICS,
)
mutant(
    "evaluation.results.detection_rows",
    "the seed is lost on the way to the bootstrap",
    "resamples=resamples, seed=seed)",
    "resamples=resamples)",
    "evaluation/test_evaluate.py",
)
mutant(
    "evaluation.run._thresholds",
    "thresholds are set on shifted images too",
    "if image_set.group is Group.ID and",
    "if image_set.group is not Group.OPEN and",
    "evaluation/test_evaluate.py",
)

# Scoring and stores.
mutant(
    "scoring.deal_folds",
    "folds follow the order of the images",
    "np.random.default_rng(0).permutation(count)",
    "np.arange(count)",
    "test_scoring.py",
)
mutant(
    "scoring.cross_fit",
    "a scorer learns from its own fold",
    "dealt != fold",
    "dealt >= 0",
    "test_scoring.py",
)
mutant(
    "scoring.cross_fit",
    "images that are not learned from are all scored by the first scorer",
    "np.arange(known.images) % count",
    "np.arange(known.images) * 0",
    "test_scoring.py",
)
mutant(
    "scoring.known_images",
    "every batch begins with an image to learn from",
    "-done % step",
    "0",
    "test_scoring.py",
)
mutant(
    "scoring.Encoded.batches",
    "held features serve scores that look at patches",
    "self._held is not None and not needs",
    "self._held is not None",
    "test_scoring.py",
)
mutant(
    "classifiers.base.Classifier.compare",
    "blocks are not filled up",
    "-len(block) % ROW_BLOCK",
    "0",
    "classifiers/test_precomputed.py",
)
mutant(
    "evaluation.run._score_sets",
    "every known set takes the folds of the first",
    "one.folds[row:]",
    "one.folds",
    "evaluation/test_cross_fitted.py",
)
mutant(
    "scoring.CrossFitted.folds_of",
    "new images are all scored by the first scorer",
    "np.arange(rows.start, rows.stop) % len(self.scorers)",
    "np.arange(rows.start, rows.stop) * 0",
    "test_scoring.py",
)
mutant(
    "classifiers.base.closest_classes",
    "confidence without the logit scale",
    "(similarities - best) * logit_scale",
    "similarities - best",
    "test_scoring.py",
)
mutant(
    "store.store.Store._gather",
    "rows 0, 0, 2 are read as a run of three",
    "bool((np.diff(inside) == 1).all())",
    "inside[-1] - inside[0] == len(inside) - 1",
    "store/test_rows.py",
)

# Thresholds and calibration.
THRESHOLDS = "stats/test_thresholds.py"
mutant(
    "stats.thresholds.rank_of",
    "the new image is left out of the n + 1",
    "math.floor((1 - keep) * (images + 1) + ROUNDING)",
    "math.floor((1 - keep) * images + ROUNDING)",
    THRESHOLDS,
)
mutant(
    "stats.thresholds.rank_of",
    "one rank too many for the confidence",
    "below = np.cumsum(binomial(images, min(1 - keep, 1 - 2**-53)))",
    "below = np.cumsum(binomial(images, min(1 - keep, 1 - 2**-53))) - binomial(images, min(1 - keep, 1 - 2**-53))",
    THRESHOLDS,
)
mutant("stats.thresholds.kept_at_least", "the Beta bound of the next rank", "rank - 1", "rank", THRESHOLDS)
mutant("stats.thresholds.upper_share", "the bound rounded down", "return high", "return low * (1 - 1e-6)", THRESHOLDS)
mutant("stats.thresholds.threshold_of", "the next score is the threshold", ") - 1])", ")])", THRESHOLDS)
mutant("stats.thresholds.count_at_most", "equal scores are not counted", 'side="right"', 'side="left"', THRESHOLDS)
mutant(
    "stats.thresholds.count_at_most",
    "every calibration score is compared with the first fold's scorer",
    "values[:, k]",
    "values[:, 0]",
    THRESHOLDS,
    "detector/test_guarantees.py",
)
mutant(
    "stats.thresholds.conformal_p_values",
    "p-values can be 0",
    "(1.0 + count_at_most",
    "(0.0 + count_at_most",
    THRESHOLDS,
)
mutant(
    "stats.thresholds.benjamini_hochberg",
    "the first p-value within its bound, not the last",
    "ordered[within[-1]]",
    "ordered[within[0]]",
    THRESHOLDS,
)
mutant(
    "stats.thresholds.slack_of",
    "no slack for the range of the scores",
    "SLACK_OF_RANGE * (high - low) + ",
    "",
    THRESHOLDS,
    "detector/test_detector.py",
)
mutant(
    "detector.calibration.Calibration.rejects",
    "an image at the threshold is rejected",
    "< self.rank",
    "<= self.rank",
    "detector/test_detector.py",
)
mutant(
    "detector.calibration.Calibration.rejects",
    "rounding rejects",
    "values + self.slack",
    "values",
    "detector/test_guarantees.py",
)
mutant(
    "detector.calibration.Calibration.p_values",
    "p-values by images that were trained on",
    "self.guarantee.trained or ",
    "",
    "detector/test_guarantees.py",
)
mutant(
    "detector.calibration.Calibration.by_class",
    "a class's rank is that of all images",
    "images=int(own.sum())",
    "images=len(self.scores)",
    "detector/test_guarantees.py",
)
mutant(
    "detector.calibration.class_groups",
    "images that are classified wrongly set their class's threshold",
    "np.where(truth == named, truth, -1)",
    "truth.copy()",
    "detector/test_guarantees.py",
)
mutant(
    "detector.detector.Detector.check_controls",
    "fdr by p-values that are not exact",
    "if known.folds is not None:",
    "if False:",
    "detector/test_guarantees.py",
)
mutant(
    "detector.saved._calibration",
    "a widened slack is lost when a detector is loaded",
    'saved["slack"]',
    "1e-12",
    "detector/test_guarantees.py",
)

# Verdicts.
VERDICTS = "detector/test_verdicts.py"
mutant(
    "detector.verdicts.Verdicts.concat",
    "unreadable images of a batch are lost",
    "unreadable=[image for part in found for image in part.unreadable]",
    "unreadable=[]",
    VERDICTS,
)
mutant(
    "detector.verdicts.VerdictStream._count",
    "a stream counts every image as rejected",
    "int(part.is_ood.sum())",
    "len(part)",
    VERDICTS,
)
mutant(
    "detector.verdict.Verdict.answer",
    "a rejected image is answered by its closest class",
    "NONE_OF_THESE if self.is_ood else self.label",
    "self.label",
    VERDICTS,
)
mutant(
    "classifiers.base.Classifier.predict_proba",
    "probabilities in the order of their size, not of the classes",
    "torch.zeros_like(shares).scatter_(1, positions, shares)",
    "shares",
    VERDICTS,
)
mutant(
    "detector.detector.Detector.control",
    "an image without a score is known",
    " | np.isnan(verdicts.scores)",
    "",
    "detector/test_guarantees.py",
)
mutant(
    "detector.calibration.slack_of_changes",
    "a score that depends on its batch gets slack for it",
    "changes <= LARGEST_ROUNDING * np.maximum(1.0, np.abs(values))",
    "changes >= 0",
    "detector/test_guarantees.py",
)

# Thresholds from class names alone.
NAMES = "detector/test_names.py"
mutant(
    "detector.names.rule_from_names",
    "more classes lower the threshold",
    "found.offset + found.slope * math.log(classes)",
    "found.offset - found.slope * math.log(classes)",
    NAMES,
)
mutant(
    "detector.names.rule_from_names",
    "the number of words does not count",
    " - math.log(words)",
    "",
    NAMES,
)
mutant(
    "detector.names.rule_from_names",
    "the prior of a model without constants upside down",
    "0.5 * math.log(classes / words)",
    "0.5 * math.log(words / classes)",
    NAMES,
)
mutant(
    "detector.names.NamesRule",
    "known images are rejected",
    "return ~(values >= self.threshold)",
    "return values >= self.threshold",
    NAMES,
)
mutant(
    "detector.names.NamesRule",
    "p-values are made up",
    "return np.full(len(values), np.nan)",
    "return np.ones(len(values))",
    NAMES,
)
mutant(
    "detector.detector.Detector",
    "a rejected image is more like the farthest word",
    "nearest = (scored.features[asked] @ features.T).argmax(axis=1)",
    "nearest = (scored.features[asked] @ features.T).argmin(axis=1)",
    NAMES,
)
mutant(
    "scores.delta_energy_words.delta_energy_words",
    "the contrast counts the other way",
    "return odds + weight * contrast",
    "return odds - weight * contrast",
    NAMES,
)
mutant(
    "scores.negatives.competing.remove_own",
    "clothes compete with people",
    "worn = {} if people is None",
    "worn = {} if True",
    NAMES,
)
