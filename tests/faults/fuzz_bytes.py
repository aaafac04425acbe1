"""Damage to bytes, whatever they mean."""

from __future__ import annotations

from pathlib import Path
from random import Random


def flipped(raw: bytearray, random: Random) -> bytes:
    """Flips some bits."""
    for _ in range(random.choice((1, 1, 1, 2, 8, 64))):
        raw[random.randrange(len(raw))] ^= 1 << random.randrange(8)
    return bytes(raw)


def replaced(raw: bytearray, random: Random) -> bytes:
    """Replaces some bytes, often by extremes, which make sizes and counts absurd."""
    for _ in range(random.choice((1, 1, 2, 8, 64))):
        raw[random.randrange(len(raw))] = random.choice((0, 0xFF, 0x7F, 0x80, random.randrange(256)))
    return bytes(raw)


def overwritten(raw: bytearray, random: Random) -> bytes:
    """Overwrites a block with zeros, ones, or noise, as a lost page of a disk may be."""
    first, size = random.randrange(len(raw)), random.choice((4, 8, 64, 512, 4096))
    size = min(size, len(raw) - first)
    raw[first : first + size] = random.choice((bytes(size), b"\xff" * size, random.randbytes(size)))
    return bytes(raw)


def truncated(raw: bytearray, random: Random) -> bytes:
    """Cuts off the end, or leaves out a block."""
    first = random.choice((0, 1, 7, len(raw) - 1, random.randrange(len(raw)), random.randrange(len(raw))))
    return bytes(raw[:first] + raw[first + random.choice((1, 8, 100, len(raw), len(raw))) :])


def longer(raw: bytearray, random: Random) -> bytes:
    """Doubles a block, or appends bytes."""
    first, end = sorted(random.randrange(len(raw) + 1) for _ in range(2))
    more = random.choice((b"\0", bytes(4096), random.randbytes(100), bytes(raw)))
    return random.choice((bytes(raw[:end] + raw[first:end] + raw[end:]), bytes(raw) + more))


def damage(path: Path, random: Random) -> None:
    """Damages the file, one way or several."""
    raw, ways = path.read_bytes(), (flipped, flipped, replaced, overwritten, truncated, longer)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if raw:
            raw = random.choice(ways)(bytearray(raw), random)
    path.write_bytes(raw)


def damage_one(folder: Path, random: Random, pattern: str = "*") -> None:
    """Damages one of the files in `folder` and below; seldom replaces it by another kind of file, or removes it."""
    files = sorted(path for path in folder.rglob(pattern) if path.is_file())
    file = random.choice(files)
    chance = random.random()
    if chance < 0.9:
        damage(file, random)
        return
    raw = file.read_bytes()
    file.unlink()
    if chance < 0.92:
        file.mkdir()
    elif chance < 0.94:
        file.symlink_to(file.name)  # leads round in a circle
    elif chance < 0.96:
        file.write_bytes(random.randbytes(200))
    elif chance < 0.98 and len(files) > 1:
        file.write_bytes(random.choice(files[1:] if files[0] == file else files[:1]).read_bytes())
    elif chance < 0.99:
        file.write_bytes(raw)
        file.chmod(0)
