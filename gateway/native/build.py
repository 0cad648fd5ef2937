"""Builds what is compiled: the C beside this file, and the modules that every call passes, as they stand, by Cython.

Their Python remains the source, and where there is no compiler it is what runs, more slowly. Types in it stay what they are
elsewhere, words for readers and the type checker: nothing is refused that Python would take. Where `gateway.native.profile` has
counted which ways calls take, the compiler is told. docs/performance.md has the gain.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from setuptools import Extension
from setuptools.command.build_ext import build_ext

MODULES = {
    "classifier": "conversation kernel scorer view",
    "gateway": """admission answering api app attempts beside breaker bypass conversations encoding errors exchange
        headers http1 hygiene inbound learning lockstep log loop mirror observation outbound pipeline pools
        quotas record rejoin relay reply request rounds shortcut splice sse steering tenants trace traces turns
        upstream usage verdict watch window wire""",
    "gateway/console": "lately",
    "gateway/ledger": "cost ledger outbox receipts settlement totals",
    "gateway/metrics": "calls known page recent spread states tally",
    "gateway/routing": """constraints curve curves economics evidence explore guards plan prior sharing templates thresholds
        view weigh words""",
}


PROFILE: Final = Path("build", "profile")  # what `gateway.native.profile` counted, where that was done
COUNTING: Final = "DRAFTLANE_COUNTING"  # set in the environment of a build with counters

# With counters in it code only runs to count: what the compiler would do to it from there on takes a third of the time.
_FOR_COUNTERS: Final = """-fprofile-generate -fprofile-update=single -fno-tree-pre -fno-gcse -fno-schedule-insns2 -fno-ree
    -fno-crossjumping -fno-rerun-cse-after-loop -fno-peephole2 -fno-reorder-blocks -fno-cprop-registers -fno-tree-sink
    -fno-ivopts -fno-tree-vectorize""".split()


def sources() -> list[str]:
    """Return the files that are compiled, as paths from the project's root."""
    return [f"{package}/{name}.py" for package, names in MODULES.items() for name in names.split()]


def profile_of(path: str) -> Path:
    """Return where the counts of this source are, if there are any."""
    return PROFILE / f"{path.removesuffix('.py').replace('/', '.')}.gcda"


def by_profile(path: str) -> list[str]:
    """Return what the compiler is told of the ways that calls take; of code that has changed since, it forgets them."""
    profile = profile_of(path)
    place = ["-dumpdir", f"{profile.parent}/", "-dumpbase", profile.stem]  # by which GCC names a function's counts, too
    if os.environ.get(COUNTING):
        return [*_FOR_COUNTERS, *place]
    if not profile.exists():
        return []
    return ["-fprofile-use", "-fprofile-partial-training", "-Wno-coverage-mismatch", "-Wno-missing-profile", *place]


def extensions() -> list[Extension]:
    """Return the modules of the data path, translated to C under build/."""
    try:
        from Cython.Build import cythonize
    except ImportError:  # a build without isolation, where nobody asked for it
        return []
    translated = cythonize(  # type: ignore[no-untyped-call]
        [
            Extension(
                path.removesuffix(".py").replace("/", "."),
                [path],
                include_dirs=["gateway/native"],
                depends=["gateway/native/sites.h", *map(str, profile_of(path).parent.glob(profile_of(path).name))],
                extra_compile_args=["-O2", "-g0", *by_profile(path)],
                extra_link_args=["-fprofile-generate"] if os.environ.get(COUNTING) else [],
            )
            for path in sources()
        ],
        build_dir="build/cython",
        compiler_directives={"annotation_typing": False, "language_level": 3},
        quiet=True,
    )
    assert isinstance(translated, list)
    for extension in translated:
        extension.optional = True  # which Cython does not take over
        remember(Path(extension.sources[0]))
    return translated


def remember(translated: Path) -> None:
    """Have a translated module remember where it found attributes (see `sites.h`), if it is laid out as expected."""
    code = translated.read_text()
    before, mark, rest = code.partition(_OWN_CODE)
    own, end, helpers = rest.partition(_SECTION)
    if mark and end and _SITES not in before:
        translated.write_text(f"{before}{_SITES}{mark}{own}{_SITES}{end}{helpers}")


_SECTION = "/* #### Code section: "  # Cython's marks in what it writes
_OWN_CODE = f"{_SECTION}module_code ### */"
_SITES = '#include "sites.h"\n'


class Build(build_ext):  # type: ignore[misc]
    """Builds as many extensions at once as there are processors, and in place only those whose sources have changed."""

    def finalize_options(self) -> None:
        """Add the modules of the data path to the extensions that pyproject.toml names."""
        known = {extension.name for extension in self.distribution.ext_modules}
        self.distribution.ext_modules += [one for one in extensions() if one.name not in known]
        super().finalize_options()
        self.parallel: int | None = self.parallel or os.cpu_count()
        if self.inplace:  # where else a temporary directory is built in, and thrown away
            self.build_lib = self.build_temp = str(Path("build", "inplace"))
