"""Every test program, plain, in lock-step and on the fly: the law of the library on whole programs."""

import importlib

import numpy as np
import pytest

import autobatch as ab
from tests import inspect
from tests.inspect import noted_fallbacks
from tests.law import assert_same, batch_of
from tests.programs.registry import PROGRAMS

KINDS = "sequences", "branches", "control", "loops", "shapes", "trees", "containers", "objects", "functional", "syntax"
KINDS += ("algorithms", "buffers", "classics", "models")

for _kind in KINDS:
    importlib.import_module(f"tests.programs.{_kind}")


# What runs on the fly: Python's containers, objects, generators, handlers and patterns, of each example.
ON_THE_FLY = set(
    """
    a_closure_keeps_the_state a_list_or_none a_ring_buffer alignments_of_a_label an_accumulator
    an_object_of_values_or_none an_option_per_example as_many_rows_as_wanted automaton
    beam_by_heap beam_search
    beam_that_ends_by_itself brackets_that_match breadth_first buckets calculator caught_for_some cells_with_state
    child_sum_tree_lstm classes_that_inherit copies dicts_by_key divides_or_not draws_from_an_iterator
    edit_distance_of_words evaluates_an_expression every_method_of_a_list graph_network
    heap_sort inverted_index iterators_of_itertools knapsack layers_that_count linked_list lists_around_others
    lists_of_arrays_joined memoised_recursion memory_by_speaker
    methods_of_one_of_several_objects model_driven_parser names_of_one_list numpy_of_a_list_or_a_dict partial_functions
    objects_changed_in_branches objects_in_lists operators_of_the_users parser_that_decides products_of_polynomials
    rebinds_its_list recursive_network replaces_fields rows_of_a_list scaled_while_entered
    search_tree sets_of_each_example shortest_ways sorts stack_machine states_of_dataclasses
    strings_of_each_example sums_what_generators_yield takes_from_both_ends the_smallest_of_one tokens_of_one_iterator
    tries_until_it_works truth_and_order_of_containers union_find way_through_a_grid word_counts
    two_buffers_in_turn writes_and_slices_by_example zips_with_generators
    """.split()  # noqa: SIM905 - as one reads names
)
RAISES = {"raises_for_some", "maximum_of_perhaps_nothing", "lengths_that_disagree"}
# Without a decision, or a loop of a length, that differs by example: every statement runs once, for all.
STRAIGHT = {
    "a_prefix", "beam_by_heap", "beam_search", "boolean_index", "causal_attention", "cross_attention", "dataclass_out",
    "distinct", "layer_norm_by_hand", "least_squares", "lists_given_to_numpy", "looked_up", "multi_head_attention",
    "numbers_of_python", "ragged_products_in_both_orders", "self_attention", "several_kinds_of_results",
    "sized_by_a_value", "softmax_down_the_ragged_axis", "transformer_token_loss", "writes_at_a_position",
    "writes_through_a_view",
}  # fmt: skip
# One string is no batch: it is the same for all examples.
ALONE_IS_NO_BATCH = {"an_option_per_example", "strings_of_each_example", "brackets_that_match", "calculator"}
ALONE_IS_NO_BATCH |= {"edit_distance_of_words"}


@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_batch_equals_loop(name):
    program = PROGRAMS[name]
    report = ab.testing.assert_equivalent(program.f, *program.examples, grad=program.grad, **program.shared)
    assert "ab.map" in report.ways
    assert ("gradients" in report.skipped) != program.grad, report.skipped
    assert "ab.map" not in report.fallbacks or name in RAISES, report.fallbacks


def run(program, chosen=slice(None)):
    """The program in lock-step on some of its examples, padding poisoned: the results, and what fell back."""
    columns = [column[chosen] for column in program.examples]
    with noted_fallbacks() as found:
        out = ab.examples(ab.batch(program.f)(*map(batch_of, columns), **program.shared))
    want = [program.f(*row, **program.shared) for row in zip(*columns, strict=True)]
    return out, want, found


LEAST = {"lockstep": 95, "fly": 88, "compiled": 132}
WITHOUT_A_FORM = 21


@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
def test_how_many_programs_each_mode_has_a_form_of():
    """The numbers may only rise, that of the programs without any form only fall."""
    found = {name: ab.testing.forms(each.f, *each.examples, **each.shared) for name, each in PROGRAMS.items()}
    assert {name for name, forms in found.items() if forms["lockstep"]} == ON_THE_FLY
    counts = {mode: sum(not forms[mode] for forms in found.values()) for mode in LEAST}
    assert {mode: count for mode, count in counts.items() if count < LEAST[mode]} == {}, counts
    assert sum(all(forms.values()) for forms in found.values()) <= WITHOUT_A_FORM
    named = [why for forms in found.values() for why in (forms["lockstep"], forms["compiled"]) if ".py:" in why]
    assert len(named) > 100, "a reason has the user's line"


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - RAISES - ON_THE_FLY))
def test_lanes_part(name):
    with ab.options(blocks=False), inspect.regions() as regions:  # as one op, which a known loop is, it has no lanes
        run(PROGRAMS[name])
    assert any(lanes < around for lanes, around in regions) != (name in STRAIGHT)


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - RAISES - ALONE_IS_NO_BATCH))
def test_one_example_and_none(name):
    program = PROGRAMS[name]
    for chosen in (slice(0, 1), slice(1, 2)):
        out, want, found = run(program, chosen)
        assert bool(found) <= (name in ON_THE_FLY), found
        assert len(out) == len(want) == 1
        assert_same(out, want, name)
    nobody = [ab.MaskedBatch(np.zeros((0, *np.shape(column[0])))) for column in program.examples]
    with noted_fallbacks():
        assert ab.examples(ab.batch(program.f)(*nobody, **program.shared)) == []


@pytest.mark.parametrize(
    "name", ["rnn", "stack_machine", "cells_with_state", "memory_by_speaker", "states_of_dataclasses"]
)
def test_as_many_examples_as_steps_as_features(name):
    program = PROGRAMS[name]
    rng = np.random.default_rng(7)
    width = program.examples[0][0].shape[1:]
    columns = [[rng.normal(size=(n, *width)).astype(np.float32) for n in (3, 1, 2)][: width[0] if width else 3]]
    columns += [[[0, 1, 0][:n] for n in (3, 1, 2)] for _ in program.examples[1:]]
    ab.testing.assert_equivalent(program.f, *columns, grad=program.grad, **program.shared)


def test_the_register_is_not_empty():
    assert len(PROGRAMS) > 100
