"""How tests run: on eight simulated CPU devices, or on a GPU with JAXGEMM_TEST_GPU=1."""

import os
import random
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.tuning_fakes import Clock

_ON_GPU = os.environ.get("JAXGEMM_TEST_GPU") == "1"
# Where all that tests need should be there, a test that is skipped fails.
_NO_SKIPS = os.environ.get("JAXGEMM_TEST_NO_SKIPS") == "1"
_NUM_DEVICES = "--xla_force_host_platform_device_count"

# JAX reads these when it is first imported, which is after this file.
if not _ON_GPU:
    os.environ["JAX_PLATFORMS"] = "cpu"
if _NUM_DEVICES not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_NUM_DEVICES}=8".strip()

# The threads of XLA's CPU client. Interpreted kernels block some of them while CTAs of a cluster
# wait for one another; with as few as two there would be none left to go on.
os.environ.setdefault("NPROC", "16")


def pytest_configure(config: pytest.Config) -> None:
    """Makes property tests try the same examples every time."""
    del config
    from hypothesis import settings

    settings.register_profile("jaxgemm", derandomize=True, deadline=None, database=None)
    settings.load_profile("jaxgemm")


def pytest_report_header() -> str:
    """Says what was tested on."""
    import jax

    return f"jax {jax.__version__} on {'a GPU' if _ON_GPU else 'simulated CPU devices'}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out tests that need a GPU where there is none, and slow tests beyond the sample."""
    dropped = {i.nodeid for i in items if not _ON_GPU and i.get_closest_marker("gpu")}
    slow = sorted(i.nodeid for i in items if i.get_closest_marker("slow"))
    slow = [nodeid for nodeid in slow if nodeid not in dropped]
    sample = int(os.environ.get("JAXGEMM_SLOW_SAMPLE", len(slow)))
    if sample < len(slow):
        dropped |= set(slow) - set(random.Random(0).sample(slow, sample))
    config.hook.pytest_deselected(items=[i for i in items if i.nodeid in dropped])
    items[:] = [i for i in items if i.nodeid not in dropped]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fails what is skipped, if nothing may be."""
    report = yield
    if _NO_SKIPS and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"JAXGEMM_TEST_NO_SKIPS=1, but this is skipped: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def strict_policy() -> Iterator[None]:
    """A chosen kernel that fails to lower is an error; on a GPU, float32 is float32.

    There, most cases are of dtypes that only the XLA reference takes for now, so the tests of
    what must not end at the reference set `strict` themselves.
    """
    import jax

    import jaxgemm

    if not _ON_GPU:
        with jaxgemm.use(strict=True):
            yield
        return
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """The folder of the tables of a user who has none."""
    from tests import tuning_fakes

    with tuning_fakes.user_home(tmp_path) as folder:
        yield folder


@pytest.fixture
def clock() -> Iterator["Clock"]:
    """A clock that only fakes move."""
    from tests import tuning_fakes

    with tuning_fakes.fake_time() as found:
        yield found
