"""Device code of an earlier compile, and the types for which it may be used again."""

from __future__ import annotations

import pytest

from numba_kcache.frontends.numba.compiled_code import is_plain
from numba_kcache.frontends.numba.fingerprint import Refused


class Kind:
    """A type as Numba's are recognised: it has `can_convert_to`."""

    can_convert_to = None


@pytest.mark.parametrize("error", [Refused("it is a function"), ZeroDivisionError("in repr"), RecursionError()])
def test_type_that_cannot_be_read_is_not_plain(error: Exception) -> None:
    """A type of an extension may raise any error; the compile goes on, without code of an earlier one."""

    def form_of_type(_kind: object) -> tuple[()]:
        raise error

    assert not is_plain((Kind(),), form_of_type)
    assert not is_plain((1, (Kind(),)), form_of_type)
    assert is_plain((1, ()), form_of_type)
