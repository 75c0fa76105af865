"""A second reader of the store, written from docs/storage_format.md alone, for tests that must change a file so that
every digest is right again: a change that no check may catch, only the tokens' arithmetic."""
import json
import pathlib
import struct

import xxhash

BLOCK = 4096
FRAME_HEADER = 48


def digest(data):
    return xxhash.xxh3_128(data).digest()


def with_block_digest(block):
    """A header or footer block with its own digest (bytes [16, 32)) made right."""
    zeroed = block[:16] + bytes(16) + block[32:]
    return block[:16] + digest(zeroed) + block[32:]


class Segment:
    """One segment file in memory."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.data = bytearray(self.path.read_bytes())
        footer = self.data[-BLOCK:]
        assert footer[:8] == b"LAYOEND1", path
        self.index_offset, self.count = struct.unpack_from("<QQ", footer, 32)

    def entries(self):
        """(position, kind, layer, token_begin, token_end, offset, bytes) of every record."""
        for i in range(self.count):
            kind, _, layer, begin, end, _, _, offset, size = struct.unpack_from("<HHIIIIIQQ", self.data, self.index_offset + 72 * i)
            yield i, kind, layer, begin, end, offset, size

    def payload(self, i):
        offset, size = struct.unpack_from("<QQ", self.data, self.index_offset + 72 * i + 24)
        return bytes(self.data[offset:offset + size])

    def replace_payload(self, i, payload):
        at = self.index_offset + 72 * i
        offset, size = struct.unpack_from("<QQ", self.data, at + 24)
        assert len(payload) == size
        self.data[offset:offset + size] = payload
        self.data[at + 56:at + 72] = digest(payload)

    def finish(self):
        """Writes the file back; returns its new index digest as hex."""
        index = bytes(self.data[self.index_offset:-BLOCK])
        index_digest = digest(bytes(self.data[:BLOCK]) + index)
        footer = bytearray(self.data[-BLOCK:])
        footer[56:72] = index_digest
        self.data[-BLOCK:] = with_block_digest(bytes(footer))
        self.path.write_bytes(self.data)
        return index_digest.hex()


class Frame:
    def __init__(self, kind, sequence, payload):
        self.kind, self.sequence, self.payload = kind, sequence, payload


def read_journal(path):
    data = pathlib.Path(path).read_bytes()
    frames, at = [], 0
    while at < len(data):
        magic, kind, _, sequence, size = struct.unpack_from("<4sHHQI", data, at)
        assert magic == b"LYJ1", at
        frames.append(Frame(kind, sequence, data[at + FRAME_HEADER:at + FRAME_HEADER + size]))
        at += FRAME_HEADER + size + 16
    return frames


def journal_bytes(frames):
    """The frames as bytes, and the chain digest after each."""
    salt, out, chain, chains = 0, b"", bytes(16), []
    file_salt = struct.unpack_from("<Q", frames[0].payload, 8)[0]
    for frame in frames:
        head = struct.pack("<4sHHQII16s", b"LYJ1", frame.kind, 0, frame.sequence, len(frame.payload), 0, chain)
        checksum = xxhash.xxh3_128(struct.pack("<Q", salt) + head).intdigest() & (2**64 - 1)
        head += struct.pack("<Q", checksum)
        out += head + frame.payload + digest(frame.payload)
        chain = digest(head + digest(frame.payload))
        chains.append((len(out), chain))
        salt = file_salt
    return out, chains


def manifest_text(manifest):
    manifest = {key: value for key, value in manifest.items() if key != "digest"}
    manifest["digest"] = "0" * 32
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    own = digest(text.encode()).hex()
    return text.replace('"digest": "' + "0" * 32 + '"\n}', f'"digest": "{own}"\n}}'), own


def rebind(folder, manifest):
    """Writes the manifest back and makes the journal's `saving` and `saved` frames name it."""
    frames = read_journal(folder / "journal")
    # The manifest binds a place before the frames that name it, so that place does not move.
    text, own = manifest_text(manifest)
    generation = manifest["generation"]
    for frame in frames:
        if frame.kind in (6, 7) and struct.unpack_from("<Q", frame.payload)[0] == generation:
            frame.payload = frame.payload[:8] + bytes.fromhex(own)
    data, _ = journal_bytes(frames)
    (folder / "journal").write_bytes(data)
    (folder / "manifest.json").write_text(text)


def only_conversation(store):
    folders = [path for path in pathlib.Path(store).glob("c/*") if (path / "manifest.json").exists()]
    assert len(folders) == 1, folders
    return folders[0]


def change_one_value(store):
    """Flips the top bit of the mantissa of one f16 K value of the middle layer, and makes every digest right again."""
    folder = only_conversation(store)
    manifest = json.loads((folder / "manifest.json").read_text())
    segment = Segment(folder / manifest["segments"][0]["file"])
    rows = [i for i, kind, *_ in segment.entries() if kind == 1]
    chosen = rows[len(rows) // 2]
    payload = bytearray(segment.payload(chosen))
    payload[1] ^= 0x02
    segment.replace_payload(chosen, bytes(payload))
    manifest["segments"][0]["index_digest"] = segment.finish()
    rebind(folder, manifest)
