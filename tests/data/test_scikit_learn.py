"""`ab.Examples` is an `X` for scikit-learn: cross-validation, grid search in other processes, splits, pipelines."""

import numpy as np
import pytest

import autobatch as ab
from tests.law import assert_same

sklearn = pytest.importorskip("sklearn")
from sklearn.base import BaseEstimator, TransformerMixin  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.utils import resample, shuffle  # noqa: E402

RNG = np.random.default_rng(0)
BAGS = [RNG.integers(0, 20, RNG.integers(1, 9)) for _ in range(60)]
LABELS = np.array([int(bag.sum() > 40) for bag in BAGS])


class BagOfWords(BaseEstimator, TransformerMixin):
    def __init__(self, dim=4):
        self.dim = dim

    def fit(self, bags, labels=None):
        assert type(bags) is ab.Examples
        self.table_ = np.random.default_rng(0).normal(size=(20, self.dim))
        return self

    def transform(self, bags):
        assert type(bags) is ab.Examples
        return np.stack(ab.map(lambda ids, table: table[ids].sum(0), bags, table=self.table_))


class OfArrays(BagOfWords):
    def fit(self, bags, labels=None):
        self.table_ = np.random.default_rng(0).normal(size=(20, self.dim))
        return self

    def transform(self, bags):
        return np.stack([self.table_[ids].sum(0) for ids in bags])


def test_cross_validation_equals_that_of_lists():
    found = cross_val_score(make_pipeline(BagOfWords(), LogisticRegression()), ab.Examples(BAGS), LABELS, cv=3)
    expected = cross_val_score(make_pipeline(OfArrays(), LogisticRegression()), BAGS, LABELS, cv=3)
    assert_same(found, expected)


def test_a_grid_is_searched_in_two_processes():
    model = make_pipeline(BagOfWords(), LogisticRegression())
    search = GridSearchCV(model, {"bagofwords__dim": [2, 8]}, n_jobs=2, cv=2, error_score="raise")
    search.fit(ab.Examples(BAGS), LABELS)
    assert search.predict(ab.Examples(BAGS[:5])).shape == (5,)


def test_splits_and_draws():
    train, test, train_labels, _ = train_test_split(ab.Examples(BAGS), LABELS, random_state=0)
    lists, _, list_labels, _ = train_test_split(BAGS, LABELS, random_state=0)
    assert (type(train), len(train), len(test)) == (ab.Examples, 45, 15)
    assert_same(list(train), lists)
    assert_same(train_labels, list_labels)
    for draw in (resample, shuffle):
        assert_same(list(draw(ab.Examples(BAGS), random_state=0)), draw(BAGS, random_state=0))
