"""The SVG file: whole, well-formed, readable without seeing it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from hypothesis import given

from omni_async import load_deploy
from omni_async.cli.config.command import figure
from omni_async.cli.config.text import spelled

from .pipelines import deployments

SVG = "{http://www.w3.org/2000/svg}"


def texts(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def drawn(deploy: Any) -> ET.Element:
    return ET.fromstring(figure(load_deploy(deploy), None))


@given(deployments())
def test_every_stage_and_every_edge_is_there(deploy: dict[str, Any]) -> None:
    root = drawn(deploy)
    stages = deploy["stages"]
    assert len(root.findall(f".//{SVG}rect[@class='box']")) == len(stages)
    assert {spelled(f"stage {stage['stage_id']}") for stage in stages} <= set(texts(root))
    edges = sorted(
        (spelled(f"{stage['stage_id']} → {key.removeprefix('to_stage_')}"), connector["name"])
        for stage in stages
        for key, connector in stage["output_connectors"].items()
    )
    tips = [tip.text or "" for tip in root.iterfind(f".//{SVG}g/{SVG}title")]
    assert sorted(tuple(tip.rsplit(": ", 1)) for tip in tips) == edges
    ways = [path for path in root.iter(f"{SVG}path") if "way" in path.attrib["class"].split()]
    assert len(ways) == len(edges)


def test_a_name_is_never_markup() -> None:
    name = "<script>&'\""
    text = figure(load_deploy({"stages": [{"stage_id": name}]}), None)
    assert "<script" not in text
    assert f"stage {spelled(name)}" in texts(ET.fromstring(text))


def test_it_needs_nothing_from_elsewhere_and_knows_light_and_dark() -> None:
    text = figure(load_deploy({"stages": [{"stage_id": 0}]}), None)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg\b)|url\(|@import|<script|href", text)
    assert "prefers-color-scheme: dark" in text


def test_it_says_what_it_shows(tmp_path: Path) -> None:
    path = tmp_path / "deploy.yaml"
    path.write_text(
        "stages:\n- {stage_id: 0}\n- {stage_id: 1}\n- {stage_id: 2}\n"
        "edges: [{from: 0, to: 1}, {from: 1, to: 0}]\n"
    )
    deploy = load_deploy(path)
    root = ET.fromstring(figure(deploy, None))
    assert root.attrib["role"] == "img"
    title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert description is not None
    assert root.attrib["aria-labelledby"] == f"{title.attrib['id']} {description.attrib['id']}"
    assert title.text == "deploy.yaml"
    assert description.text == (
        "3 stages, 2 edges. 0 → 1: SharedMemoryConnector. 1 → 0: SharedMemoryConnector"
    )
    assert "dashed = feedback, against the flow" in texts(root)
    alone = ET.fromstring(figure(deploy, "2"))
    assert texts(alone) == ["deploy.yaml, stage 2", "stage 2"]


def test_everything_is_within_the_picture() -> None:
    root = drawn(
        {"stages": [{"stage_id": 0, "host": "a"}, {"stage_id": 1}], "edges": [{"from": 0, "to": 1}]}
    )
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for box in root.iterfind(f".//{SVG}rect[@class='box']"):
        assert float(box.attrib["x"]) + float(box.attrib["width"]) < width
        assert float(box.attrib["y"]) + float(box.attrib["height"]) < height
