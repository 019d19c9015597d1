"""Pictures of where errors sit."""

import xml.etree.ElementTree as ET

from pytest_cutile.correctness.explain.places import Picture

PICTURE = Picture(
    title="output[<0>, :, :]",
    shape=(3, 10),
    cell=(1, 2),
    shares=((0.0, 0.05, 0.3, 0.7, 1.0), (0.0, 0.0, 0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 0.0, 1.0)),
)


def test_shades():
    assert PICTURE.as_text() == ["| .:*#|", "|     |", "|### #|"]
    assert PICTURE.caption == "output[<0>, :, :], 3 x 10, a character for 1 x 2"


def test_svg_joins_equal_cells():
    root = ET.fromstring(PICTURE.as_svg())
    rects = [each.attrib for each in root.iter() if each.tag.endswith("rect") and "x" in each.attrib]
    assert [(each["x"], each["y"], each["width"]) for each in rects] == [
        *(("10", "0", "10"), ("20", "0", "10"), ("30", "0", "10"), ("40", "0", "10")),
        *(("0", "20", "30"), ("40", "20", "10")),
    ]
    text = next(each.text for each in root.iter() if each.tag.endswith("text"))
    assert text is not None
    assert text.startswith("output[<0>, :, :]: 3 x 10")
