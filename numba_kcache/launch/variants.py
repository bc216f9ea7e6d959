"""Launches of a kernel whose code depends on the types of its arguments: one launcher for each variant.

Promise     Arguments of the variant that was launched last cost nothing more. Those of another are looked up by their
            types; what no launcher takes goes to the front end's own launch.
Method      Each configuration has a front: the launch function of the variant that it saw last. What that does not
            take comes back here, and its own variant becomes the front.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from .arguments import Launch
from .configurations import Configurations
from .devices import check_interpreter


class VariantLaunch:
    """One configuration of such a kernel, before its first launch and for all that its front does not take.

    Args:
        kernel: That keeps the front.
        config: Between the brackets, as it was written.
        prepare: Makes the launch function of a variant; None where only `otherwise` can launch it.
        variant_of: Finds the variant of arguments; None where the front end has to refuse them.
        otherwise: Launches by the front end's own means.
    """

    def __init__(
        self,
        kernel: Configurations,
        config: Any,
        prepare: Callable[[Hashable], Launch | None],
        variant_of: Callable[[tuple[Any, ...]], Hashable],
        otherwise: Launch,
    ) -> None:
        self._kernel, self._config = kernel, config
        self._prepare, self._variant_of, self._otherwise = prepare, variant_of, otherwise
        self._by_variant: dict[Hashable, Launch] = {}
        self._front: Launch = self.launch

    def __call__(self, *args: Any) -> None:
        self._front(*args)

    def launch(self, *args: Any) -> None:
        """Launch arguments of whatever variant, and be ready for the next ones of the same."""
        check_interpreter()
        variant = self._variant_of(args)
        if variant is None:
            self._otherwise(*args)
            return
        found = self._by_variant.get(variant) or self._prepare(variant)
        if found is None:
            found = self._otherwise  # which takes all variants: the next launch looks at none
        else:
            self._by_variant[variant] = found
        self._front = found
        self._kernel.keep(self._config, found)
        found(*args)

    def refused(self, variant: Hashable, args: tuple[Any, ...]) -> None:
        """Launch what the launcher of a variant did not take: by other means if it is of that very variant."""
        if self._variant_of(args) == variant:
            self._otherwise(*args)  # a host array, say: the same types, but not for the straight way
        else:
            self.launch(*args)
