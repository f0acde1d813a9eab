"""Files in the format of WordNet's, with a few entries."""

from pathlib import Path

GLOSSES = {
    "noun": {
        "lamp": 'an artificial source of visible illumination; "light the lamp"',
        "boat": "a small vessel for travel on water",
        "sea": "a division of an ocean; water",
    },
    "verb": {"boat": "ride in a vessel on water", "light": "make lighter; give light"},
    "adj": {},
    "adv": {},
}


def write(folder: Path) -> Path:
    folder.mkdir()
    for part, glosses in GLOSSES.items():
        data, index = "  1 the licence\n", ["  1 the licence"]
        for lemma, gloss in glosses.items():
            start = len(data)
            data += f"{start:08d} 06 n 01 {lemma} 0 000 | {gloss}  \n"
            index.append(f"{lemma} n 2 1 @ 2 1 {start:08d} 99999999  ")
        (folder / f"data.{part}").write_text(data)
        (folder / f"index.{part}").write_text("\n".join(index) + "\n")
        (folder / f"{part}.exc").write_text("lit light\n" if part == "verb" else "")
    return folder
