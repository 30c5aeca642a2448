"""Import paths that pages once named are refused with those of today."""

import importlib

import pytest

import user_dir


@pytest.mark.parametrize("old", user_dir.MOVED)
def test_an_old_path_is_refused_with_the_new_one(old):
    new = f"user_dir.{user_dir.MOVED[old]}"
    with pytest.raises(ModuleNotFoundError, match=f"user_dir.{old} .*{new}$"):
        importlib.import_module(f"user_dir.{old}")
    importlib.import_module(new)


def test_any_other_is_missing_as_ever():
    with pytest.raises(ModuleNotFoundError, match="No module named 'user_dir.nowhere'"):
        importlib.import_module("user_dir.nowhere")
