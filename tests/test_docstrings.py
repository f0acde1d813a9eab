"""Functions, constructors and methods of the API reference say what they take and return."""

import inspect
import re

import pytest
from torch import nn

import drill
from drill import hf, language_modeling
from drill import report as reports
from drill.kernels.loss.nll import nll
from drill.language_modeling.calibration import calibration
from drill.language_modeling.frequency_bands import compare_bands, frequency_bands
from drill.language_modeling.run import LanguageModelRun
from drill.report.analysis.label_vectors import label_norms, label_vectors, nearest_labels
from drill.report.analysis.log_prob_rank import log_prob_rank
from drill.report.analysis.paired_bootstrap import paired_bootstrap
from drill.study.page import write_study_page
from drill.study.plan import read_plan
from drill.study.runner import run_study
from drill.study.statistics import paired_difference
from drill.study.tables import report
from drill.translation.run import TranslationRun

INTERNAL = re.compile("_|check|forward|extra_repr|.*_summary")  # as the filters of mkdocs.yml
FUNCTIONS = [nll, read_plan, report, run_study, write_study_page, paired_difference]
FUNCTIONS += [calibration, compare_bands, frequency_bands, log_prob_rank, paired_bootstrap]
FUNCTIONS += [label_norms, label_vectors, nearest_labels]
FUNCTIONS += [
    member
    for kind in (drill.OutputLayer, LanguageModelRun, TranslationRun)
    for name, member in vars(kind).items()
    if inspect.isfunction(member) and not INTERNAL.match(name)
]
PUBLIC = [
    pytest.param(getattr(module, name), id=f"{module.__name__}.{name}")
    for module in (drill, hf, language_modeling, reports)
    for name in module.__all__
    if callable(getattr(module, name))
]
PUBLIC += [pytest.param(each, id=each.__qualname__) for each in FUNCTIONS]


@pytest.mark.parametrize("public", PUBLIC)
def test_arguments_and_results_are_documented(public):
    text = inspect.getdoc(public)
    assert text
    if not inspect.isclass(public):
        assert "Returns:" in text or inspect.signature(public).return_annotation in (None, "None")
    elif not (issubclass(public, nn.Module) and "__init__" in vars(public)):
        return
    arguments = [name for name in inspect.signature(public).parameters if name != "self"]
    assert [a for a in arguments if not re.search(rf"^\s*\**{a}\b.*:", text, re.MULTILINE)] == []
