"""What tests share: the paths of the binaries, and a lab session that leaves nothing behind."""

from pathlib import Path

import pytest

from motelab.session import Lab, binary_folder


def require(path: Path, how: str) -> None:
    """Skips with a visible message if something was not built."""
    if not path.exists():
        pytest.skip(f"{path.name} is not built: {how}")


@pytest.fixture(scope="session")
def lab_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab")
    # Functions run as users of their own, who must reach the node's data.
    for path in (folder, *list(folder.parents)[:2]):
        if path != Path("/tmp"):
            path.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def lab(lab_cache: Path):
    with Lab(cache=lab_cache, quiet=True) as lab:
        yield lab


@pytest.fixture(scope="session")
def mote() -> Path:
    path = binary_folder() / "mote"
    require(path, "cargo build -p mote, and MOTE_BENCH_PROFILE=debug")
    return path
