"""A grid file becomes runs, checked as a whole before any of them begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from ductwork.errors import GridError
from ductwork.experiments.folder import conclude
from ductwork.experiments.grid import Grid, expand, load_grid
from ductwork.experiments.plan import Plan, make_plan
from ductwork.experiments.results import RESULT_FILE, RunResult

CONFIGS = sorted((Path(__file__).parent.parent.parent / "configs").rglob("*.yaml"))


def grid(**values: Any) -> Grid:
    return Grid.model_validate({"methods": ["duct"], **values})


def problems(tmp_path: Path, **values: Any) -> tuple[str, ...]:
    with pytest.raises(GridError) as caught:
        make_plan(grid(**values), tmp_path / "out")
    return caught.value.problems


def test_every_combination_once_and_methods_change_fastest() -> None:
    runs = expand(grid(methods=["duct", "finetune"], seeds=[1, 2], orders=[1, 2], backbones=["glyph_vit", "resnet101"]))
    assert len(runs) == 16
    assert len({str(run) for run in runs}) == 16
    assert [(run["order"], run["seed"], run["backbone"], run["method"]) for run in runs[:3]] == [
        (1, 1, "glyph_vit", "duct"), (1, 1, "glyph_vit", "finetune"), (1, 1, "resnet101", "duct")]  # fmt: skip


def test_an_entry_may_have_settings_and_a_grid_of_its_own() -> None:
    runs = expand(
        grid(
            defaults={"params": {"batch_size": 4}, "engine": {"precision": "fp32"}},
            methods=[
                "finetune",
                {
                    "method": "duct",
                    "recipe": "paper",
                    "params": {"epochs": 2},
                    "grid": {"params.alpha_phi": [0.1, 0.3], "params.alpha_w": [0, 1]},
                },
            ],
        )
    )
    assert len(runs) == 5
    assert runs[0]["params"] == {"batch_size": 4}
    assert runs[4]["params"] == {"batch_size": 4, "epochs": 2, "alpha_phi": 0.3, "alpha_w": 1}
    assert {run["engine"]["precision"] for run in runs} == {"fp32"}
    assert [run.get("recipe") for run in runs] == [None, *["paper"] * 4]


def test_later_axes_win() -> None:
    runs = expand(
        grid(
            defaults={"transform": "unit", "params": {"epochs": 1}},
            streams=[{"stream": "demo", "transform": "digits", "params.epochs": 2}],
            grid={"params.epochs": [3, 4]},
            methods=["finetune", {"method": "duct", "params": {"epochs": 5}}],
        )
    )
    assert {run["transform"] for run in runs} == {"digits"}
    assert sorted((run["method"], run["params"]["epochs"]) for run in runs) == [
        ("duct", 5), ("duct", 5), ("finetune", 3), ("finetune", 4)]  # fmt: skip


def test_streams_have_orders_of_their_own() -> None:
    runs = expand(
        grid(orders=[1, 4], streams=["demo", {"stream": "demo", "orders": "all"}, {"stream": "demo", "order": 2}])
    )
    assert [run["order"] for run in runs] == [1, 4, 1, 2, 3, 4, 5, 2]


def test_pairs_change_the_grid_or_every_run(tmp_path: Path) -> None:
    path = tmp_path / "g.yaml"
    path.write_text("methods: [{method: duct, params: {epochs: 9}}, simplecil]\nseeds: [1, 2]")
    loaded = load_grid(path, ["seeds=[3]", "params.epochs=1", "engine.workers=0", "root=data"])
    runs = expand(loaded)
    assert [run["seed"] for run in runs] == [3, 3]
    assert [run["engine"] for run in runs] == [{"workers": 0}] * 2
    assert runs[0]["params"] == {"epochs": 1}
    assert runs[1]["params"] == {}, "SimpleCIL has no epochs"
    with pytest.raises(GridError, match=r"no method of the grid has a parameter 'epoch' \(did you mean 'epochs'"):
        expand(load_grid(path, ["params.epoch=1"]))


def test_all_problems_are_said_at_once(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        methods=[
            "duct",
            "ductt",
            {"method": "duct", "recipe": "papr"},
            {"method": "finetune", "params": {"epoch": 1}},
            {"method": "finetune", "params": {"epochs": -1, "lr_head": -2}},
        ],
        streams=["demo", "demmo", str(tmp_path / "nowhere")],
        orders=[1],
        backbones=["glyph_vit", "vit_bse_patch16_224"],
    )
    expected = [
        "unknown method 'ductt' (did you mean 'duct'?)",
        "method 'duct' has no recipe 'papr' (did you mean 'paper'?)",
        "method 'finetune': unknown key 'epoch' (did you mean 'epochs'?)",
        "method 'finetune': epochs = -1",
        "method 'finetune': lr_head = -2",
        "there is no stream and no folder 'demmo'",
        "nowhere",
        "there is no backbone 'vit_bse_patch16_224'",
    ]
    for words in expected:
        assert len([line for line in found if words in line]) == 1, (words, found)
    assert len(found) == len(expected)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"orders": [1, 17]}, "orders 1 to 5, not 17"),
        ({"orders": [["handwritten", "embosed"]]}, "did you mean 'embossed'"),
        ({"orders": [["handwritten", "handwritten"]]}, "twice"),
        ({"methods": ["duct", "duct"]}, "in the grid twice"),
        ({"orders": [1, ["handwritten"]], "streams": [{"stream": "demo", "orders": [1, None]}]}, "the same"),
        ({"methods": ["duct", {"method": "duct", "params": {"epochs": 15}}]}, "two runs are the same"),
        ({"defaults": {"transform": "papr"}}, "did you mean 'paper'"),
        ({"defaults": {"sead": 1}}, "unknown key 'sead' (did you mean 'seed'?)"),
        ({"defaults": {"engine": {"devices": 2}}}, "one device"),
        ({"defaults": {"increment": 10}}, "increment must be between"),
        ({"grid": {"parms.epochs": [1]}}, "did you mean 'params'"),
        ({"methods": [{"method": "duct", "grid": {"params.epochs": 3}}]}, "must be a list"),
        ({"streams": [{"orders": [1]}]}, "lacks 'stream'"),
        ({"streams": [{"stream": "demo", "orders": 3}]}, "must be a list or `all`"),
        ({"methods": [{"method": "duct", "grid": [1]}]}, "grid must hold"),
        ({"defaults": {"weights": "/nowhere/w.pth"}}, "w.pth"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(values: dict[str, Any], words: str, tmp_path: Path) -> None:
    found = problems(tmp_path, **values)
    assert [line for line in found if words in line], found


def test_a_method_that_cannot_work_on_a_backbone_is_not_a_problem(tmp_path: Path) -> None:
    plan = make_plan(
        grid(
            methods=["simplecil", "l2p", {"method": "ranpac", "recipe": "phase-1"}],
            backbones=[{"backbone": "test_resnet", "weights": str(weights(tmp_path))}],
        ),
        tmp_path / "out",
    )
    assert [run.state for run in plan.runs] == ["left", "not-applicable", "not-applicable"]
    assert "l2p" in str(plan.runs[1].reason)
    blank = plan.runs[1].blank
    assert blank is not None
    assert (blank.stream, len(blank.order), blank.backbone.name) == ("demo", 5, "test_resnet")


def weights(folder: Path) -> Path:
    from safetensors.torch import save_file

    from tests.conftest import tiny_backbone

    path = folder / "resnet.safetensors"
    save_file(tiny_backbone("test_resnet").model.state_dict(), path)
    return path


def put(plan: Plan, at: int, status: str, seconds: float = 0.0) -> None:
    run = plan.runs[at]
    assert run.task is not None
    blank = run.task.blank
    stages = [{"domain": name, "accuracy": {}, "A_b": 0.0, "n_test": {}, "n_train": 1000} for name in blank.order]
    values = {**blank.model_dump(), "status": status, "seconds": seconds, "stages": stages, "reason": "a reason"}
    run.folder.mkdir(parents=True)
    (run.folder / RESULT_FILE).write_text(RunResult.model_validate(values).model_dump_json())


def test_what_is_there_is_not_left(tmp_path: Path) -> None:
    out, small = tmp_path / "out", grid(methods=["duct", "finetune", "simplecil"], seeds=[1])
    plan = make_plan(small, out)
    for at, status in enumerate(["done", "failed", "running"]):
        put(plan, at, status)
    again = make_plan(small, out)
    assert [run.state for run in again.runs] == ["done", "failed", "left"]
    assert again.runs[1].reason == "a reason"
    assert [run.state for run in make_plan(small, out, retry_failed=True).runs] == ["done", "left", "left"]
    larger = grid(methods=["simplecil", "duct", "ranpac"], seeds=[1, 2])
    assert sorted(run.config.method for run in make_plan(larger, out).of("done")) == ["duct"]


def test_a_damaged_result_is_a_problem_and_not_a_reason_to_begin_again(tmp_path: Path) -> None:
    plan = make_plan(grid(), tmp_path)
    put(plan, 0, "done")
    (plan.runs[0].folder / RESULT_FILE).write_text("{")
    with pytest.raises(GridError, match="delete"):
        make_plan(grid(), tmp_path)


def test_time_is_estimated_from_the_most_similar_runs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert make_plan(grid(), out).seconds(1) == (0.0, 1)
    put(make_plan(grid(seeds=[1]), out), 0, "done", seconds=60.0)  # 5 domains of 1000 images, 15 epochs
    same = make_plan(grid(seeds=[1, 2, 3, 4]), out)
    assert same.seconds(1) == pytest.approx((180.0, 0))
    assert same.seconds(2) == pytest.approx((90.0, 0))
    assert same.seconds(99) == pytest.approx((60.0, 0)), "no run is faster for the others"
    other = make_plan(grid(methods=[{"method": "duct", "params": {"epochs": 30}}, "finetune"]), out)
    assert other.seconds(1) == pytest.approx((120.0, 1))
    fewer = make_plan(grid(orders=[["handwritten", "embossed"]], streams=[{"stream": "demo"}]), out)
    assert fewer.seconds(1) == pytest.approx((24.0, 0))
    begun = make_plan(grid(seeds=[5]), out)
    put(begun, 0, "running", seconds=45.0)
    assert make_plan(grid(seeds=[5]), out).seconds(1) == pytest.approx((15.0, 0))


def test_a_stream_of_folders(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for domain in ("studio", "street"):
        for name in ("cat", "dog"):
            folder = tmp_path / "photos" / domain / name
            folder.mkdir(parents=True)
            for i in range(4):
                Image.fromarray(draw.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    photos = str(tmp_path / "photos")
    plan = make_plan(grid(streams=[{"stream": photos, "orders": [["studio", "street"], ["street"]]}]), tmp_path / "out")
    assert [task.blank.order for task in plan.tasks] == [["studio", "street"], ["street"]]
    assert {task.blank.stream for task in plan.tasks} == {"photos"}
    found = problems(tmp_path, streams=[photos], orders=[1, ["alley"]])
    assert [line for line in found if "order 1 is for named streams" in line]
    assert [line for line in found if "alley" in line]


def test_a_grid_stands_on_another(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("orders: [1, 2]\nseeds: [7]\nmethods: [duct, simplecil]\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "one.yaml").write_text("base: ../base.yaml\norders: [3]\n")
    (tmp_path / "two.yaml").write_text("base: sub/one.yaml\nseeds: [8, 9]\n")
    found = load_grid(tmp_path / "two.yaml", ["methods=[duct]"])
    assert (found.orders, found.seeds, found.methods) == ([3], [8, 9], ["duct"])
    (tmp_path / "base.yaml").write_text("base: two.yaml\n")
    with pytest.raises(GridError, match=r"base.yaml: its base two.yaml leads back to it"):
        load_grid(tmp_path / "two.yaml")
    (tmp_path / "two.yaml").write_text("base: [one.yaml]\n")
    with pytest.raises(GridError, match="base must be the name of a grid's file"):
        load_grid(tmp_path / "two.yaml")
    (tmp_path / "two.yaml").write_text("base: none.yaml\n")
    with pytest.raises(GridError, match=r"there is no file .*none\.yaml"):
        load_grid(tmp_path / "two.yaml")


def test_a_conclusion_keeps_what_was_found(tmp_path: Path) -> None:
    plan = make_plan(grid(), tmp_path)
    put(plan, 0, "running", seconds=3.0)
    run = plan.runs[0]
    assert run.task is not None
    result = conclude(run.folder, run.task.blank, "failed", "it broke")
    assert (result.status, result.reason, result.seconds, len(result.stages)) == ("failed", "it broke", 3.0, 5)


@pytest.mark.parametrize("path", [p for p in CONFIGS if p.name.startswith("demo")], ids=lambda p: p.name)
def test_ready_grids_are_valid(path: Path, tmp_path: Path) -> None:
    plan = make_plan(load_grid(path), tmp_path)
    assert len(plan.tasks) == len(plan.runs) == len(expand(Grid.model_validate(yaml.safe_load(path.read_text()))))
