"""The benchmarks read as they are downloaded, in miniature, end to end through a run."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import save_file

from ductwork.data.domain import Stream
from ductwork.data.streams import open_stream, orders_of
from ductwork.errors import ConfigError, DataError
from ductwork.experiments.config import RunConfig
from ductwork.experiments.run import run
from tests.conftest import tiny_backbone
from tests.data.miniatures import OBJECTS, cddb, core50, domainnet, office_home, picture

MINIATURES: dict[str, Callable[[Path], Path]] = {
    "office-home": office_home,
    "domainnet": domainnet,
    "core50": core50,
    "cddb-hard": cddb,
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_file({key: value.contiguous() for key, value in tiny_backbone().state_dict().items()}, path)
    return path


def short(stream: str, root: Path, weights: Path, **options: object) -> RunConfig:
    return RunConfig.model_validate(
        {
            "method": "simplecil",
            "stream": stream,
            "root": str(root),
            "backbone": "test_vit",
            "weights": str(weights),
            "image_size": 32,
            "engine": {"workers": 0, "precision": "fp32", "accelerator": "cpu"},
            **options,
        }
    )


@pytest.mark.parametrize("name", MINIATURES)
def test_a_run(name: str, tmp_path: Path, weights: Path) -> None:
    root = MINIATURES[name](tmp_path / "data")
    before = sorted(path.relative_to(root) for path in root.rglob("*"))
    result = run(short(name, root, weights, order=2), tmp_path / "run")
    assert result.status == "done"
    assert result.stream == name
    assert tuple(result.order) == orders_of(name)[1]
    assert len(result.stages) == len(result.order)
    assert sorted(path.relative_to(root) for path in root.rglob("*")) == before, "nothing is written into the data"


def test_a_class_incremental_run(tmp_path: Path, weights: Path) -> None:
    # Names that sort against their labels: the stages must follow the labels.
    labels = [(i, f"class{344 - i:03d}") for i in range(345)]
    root = domainnet(tmp_path / "data", labels, train=1, test=0)
    for domain in orders_of("domainnet")[0]:  # two classes of each stage are tested
        lines = (root / f"{domain}_train.txt").read_text().splitlines()[::30]
        (root / f"{domain}_test.txt").write_text("\n".join(lines))
    stream = open_stream("domainnet-cil", root=root)
    assert stream.order == tuple(f"classes {i}-{i + 68}" for i in (1, 70, 139, 208, 277))
    assert set(stream[0].classes) == {name for label, name in labels if label < 69}
    assert all(len(stage.classes) == 69 and len(stage.train) == 69 * 6 for stage in stream)
    assert run(short("domainnet-cil", root, weights), tmp_path / "run").order == list(stream.order)
    shifting = open_stream("domainnet-cil-shifting", root=root)
    assert [stage.classes for stage in shifting] == [stage.classes for stage in stream]
    for stage, domain in zip(shifting, orders_of("domainnet")[0], strict=False):
        assert len(stage.train) == 69
        assert all(stage.train.name(i).startswith(f"{domain}/") for i in range(69))


@pytest.mark.parametrize("name", MINIATURES)
def test_orders(name: str) -> None:
    orders = orders_of(name)
    assert len(set(orders)) == 5
    assert len({frozenset(order) for order in orders}) == 1


@pytest.mark.parametrize("name", MINIATURES)
def test_listings_may_come_in_any_order(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, listed = MINIATURES[name](tmp_path / "data"), os.scandir

    class Shuffled:
        def __init__(self, path: str, seed: int) -> None:
            with listed(path) as entries:
                self.entries = list(entries)
            random.Random(seed).shuffle(self.entries)

        def __enter__(self) -> list[os.DirEntry[str]]:
            return self.entries

        def __exit__(self, *_: object) -> None: ...

    first = everything(open_stream(name, root=root))
    for seed in range(3):
        monkeypatch.setattr(os, "scandir", lambda path, seed=seed: Shuffled(path, seed))
        assert everything(open_stream(name, root=root)) == first


def everything(stream: Stream) -> list[tuple[str, str, str, str]]:
    """All that a stream is, in its own order."""
    parts = [(f"{d.name} {part}", images) for d in stream for part, images in (("train", d.train), ("test", d.test))]
    parts += list((stream.tests or {}).items())
    return [
        (name, images.name(i), images.label_name(i), str(images.labels[i]))
        for name, images in parts
        for i in range(len(images))
    ]


@pytest.mark.parametrize("name", MINIATURES)
def test_a_root_is_needed(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"'{name}'.*root=DIR.*ductwork data prepare {name}.*https://"):
        open_stream(name)
    with pytest.raises(ConfigError, match="no such folder"):
        open_stream(name, root=tmp_path / "nowhere")
    root = MINIATURES[name](tmp_path / "archive" / "data")
    with pytest.raises(ConfigError, match=f"did you mean root={root}"):
        open_stream(name, root=tmp_path / "archive")
    with pytest.raises(ConfigError, match=f"did you mean root={root}"):
        open_stream(name, root=next(path for path in sorted(root.iterdir()) if path.is_dir()))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="is not a download of"):
        open_stream(name, root=tmp_path / "empty")


def test_one_root_for_all_benchmarks(tmp_path: Path) -> None:
    for name, make in MINIATURES.items():
        root = make(tmp_path / name)
        assert everything(open_stream(name, root=tmp_path)) == everything(open_stream(name, root=root))
    with pytest.raises(DataError, match=r"domainnet: the lists name 4 classes"):
        open_stream("domainnet-cil", root=tmp_path)


@pytest.mark.parametrize("name", ["domainnet", "core50", "cddb-hard"])
def test_a_split_of_its_own(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="split has no use here"):
        open_stream(name, root=MINIATURES[name](tmp_path), split=0.5)


def test_transforms(tmp_path: Path) -> None:
    found = {name: open_stream(name, root=make(tmp_path / name)).transform for name, make in MINIATURES.items()}
    assert found == {
        "office-home": "paper-jitter",
        "domainnet": "paper",
        "core50": "paper",
        "cddb-hard": "paper-jitter",
    }


class TestOfficeHome:
    def test_full_size(self, tmp_path: Path) -> None:
        """With as many images as the real one, the test parts are as large as in the published logs."""
        for domain, n in {"Art": 2427, "Clipart": 4365, "Product": 4439, "Real World": 4357}.items():
            for i in range(65):
                (tmp_path / domain / f"c{i:02d}").mkdir(parents=True)
            for i in range(n):
                (tmp_path / domain / f"c{i % 65:02d}" / f"{i:05d}.jpg").touch()
        stream = open_stream("office-home", root=tmp_path)
        assert {d.name: len(d.test) for d in stream} == {
            "Art": 729,
            "Clipart": 1310,
            "Product": 1332,
            "Real_World": 1308,
        }
        assert {len(d.classes) for d in stream} == {65}

    def test_both_names_of_the_real_world_are_one_data_set(self, tmp_path: Path) -> None:
        one = open_stream("office-home", root=office_home(tmp_path / "a"))
        two = open_stream("office-home", root=office_home(tmp_path / "b", real_world="Real_World"))
        assert one.fingerprint == two.fingerprint
        assert one[3].train.name(0).startswith("Real_World/")
        with pytest.raises(DataError, match="both the domain 'Real_World'"):
            open_stream("office-home", root=office_home(tmp_path / "a", real_world="Real_World"))

    def test_the_split(self, tmp_path: Path) -> None:
        root = office_home(tmp_path, n=10)
        stream = open_stream("office-home", root=root)
        assert stream.classes == OBJECTS
        assert [(len(d.train), len(d.test)) for d in stream] == [(21, 9)] * 4
        assert open_stream("office-home", root=root, seed=2).fingerprint != stream.fingerprint
        assert len(open_stream("office-home", root=root, split=0.5)[0].train) == 15

    def test_a_missing_domain(self, tmp_path: Path) -> None:
        root = office_home(tmp_path)
        (root / "Clipart").rename(tmp_path.parent / f"{tmp_path.name}-away")
        with pytest.raises(DataError, match="domain 'Clipart' is missing"):
            open_stream("office-home", root=root)
        assert open_stream("office-home", root=root, order=["Art", "Product"]).order == ("Art", "Product")


class TestDomainNet:
    def test_painting_lacks_t_shirts(self, tmp_path: Path) -> None:
        stream = open_stream("domainnet", root=domainnet(tmp_path))
        painting = next(domain for domain in stream if domain.name == "painting")
        assert "t-shirt" not in painting.classes
        assert "t-shirt" in painting.test.present()
        assert "t-shirt" in stream.classes
        # labels follow the published ids
        assert stream[0].train.classes == ("aircraft_carrier", "t-shirt", "table", "zigzag")

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("clipart/zigzag/x.jpg 345", r"clipart_test.txt:5: label 345 is too high.*0 to 344"),
            ("clipart/zigzag/x.jpg 12", r"test.txt:5: class 'zigzag' has label 12 here, but 344 in .*train.txt:\d"),
            ("clipart/zebra/x.jpg 344", r"test.txt:5: label 344 is class 'zebra' here, but 'zigzag' in"),
            ("clipart/zigzag/x.jpg", r"test.txt:5: .* is not 'clipart/<class>/<image> <label>'"),
            ("clipart/zigzag/x.jpg -1", r"test.txt:5"),
            ("real/zigzag/x.jpg 344", r"test.txt:5"),
            ("clipart/../x.jpg 344", r"test.txt:5"),
            ("clipart/zigzag/clipart_345_test000000.jpg 344", r"test.txt:5: .*listed twice"),
        ],
    )
    def test_lists_that_are_wrong(self, tmp_path: Path, line: str, message: str) -> None:
        path = domainnet(tmp_path) / "clipart_test.txt"
        path.write_text(path.read_text() + line + "\n")
        with pytest.raises(DataError, match=message):
            open_stream("domainnet", root=tmp_path)

    def test_a_missing_list(self, tmp_path: Path) -> None:
        (domainnet(tmp_path) / "sketch_test.txt").unlink()
        with pytest.raises(DataError, match=r"sketch_test.txt: this list is missing"):
            open_stream("domainnet", root=tmp_path)

    def test_stages_need_all_classes(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="4 classes; domainnet-cil needs all 345"):
            open_stream("domainnet-cil", root=domainnet(tmp_path))


class TestCore50:
    def test_tests_are_domains_of_their_own(self, tmp_path: Path, weights: Path) -> None:
        root = core50(tmp_path / "data")
        stream = open_stream("core50", root=root)
        assert stream.tests is not None
        assert list(stream.tests) == ["s3", "s7", "s10"]
        assert stream.classes == ("o1", "o10", "o2")
        assert not {"s3", "s7", "s10"} & set(stream.order)
        run(short("core50", root, weights, order=["s1", "s2"]), tmp_path / "run")
        stages = json.loads((tmp_path / "run" / "result.json").read_text())["stages"]
        assert [list(stage["accuracy"]) for stage in stages] == [["s3", "s7", "s10"]] * 2

    def test_what_is_missing_or_strange(self, tmp_path: Path) -> None:
        root = core50(tmp_path)
        picture(root / "s4" / "o51" / "x.png", 0)
        with pytest.raises(DataError, match="o1 to o50"):
            open_stream("core50", root=root)
        (root / "s7").rename(root / "t7")
        with pytest.raises(DataError, match="session 's7' is missing"):
            open_stream("core50", root=root)


class TestCddb:
    def test_a_folder_level_in_between(self, tmp_path: Path) -> None:
        root = cddb(tmp_path, sets=("gaugan",))
        for label in ("0_real", "1_fake"):
            for part in ("train", "val"):
                picture(root / "gaugan" / part / "horse" / label / "1.png", 10 * len(part) + len(label))
        domain = open_stream("cddb-hard", root=root, order=["gaugan"])[0]
        assert domain.classes == ("0_real", "1_fake")
        assert (len(domain.train), len(domain.test)) == (8, 8)

    def test_what_is_missing(self, tmp_path: Path) -> None:
        root = cddb(tmp_path)
        for path in (root / "san" / "val" / "1_fake").iterdir():
            path.unlink()
        with pytest.raises(DataError, match="san/val: no image of '1_fake'"):
            open_stream("cddb-hard", root=root)
        with pytest.raises(DataError, match="this folder is missing"):
            open_stream("cddb-hard", root=cddb(tmp_path / "b", sets=("wild",)))
