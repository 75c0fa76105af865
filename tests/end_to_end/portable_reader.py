"""Reads a portable file as docs/storage_format.md section 7 says, sharing no code with the program that wrote it."""
import hashlib
import hmac
import json
import struct

import xxhash
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

HEADER = 128
TRAILER = 16


def hkdf(key, salt, info, length):
    extracted = hmac.new(salt, key, hashlib.sha256).digest()
    out, block = b"", b""
    while len(out) < length:
        block = hmac.new(extracted, block + info + bytes([len(out) // 32 + 1]), hashlib.sha256).digest()
        out += block
    return out[:length]


class Portable:
    """owner, id, manifest (text, may be empty), journal, segments: [(name, bytes)]."""

    def __init__(self, data, key=None, passphrase=None):
        header = data[:HEADER]
        magic, version, cipher, source, log2_n, r, p, self.chunk, zero, head_bytes = struct.unpack("<8s8IQ", header[:48])
        salt, check, digest = header[48:80], header[80:112], header[112:]
        assert (magic, version, zero) == (b"LAYOPRT1", 1, 0)
        assert digest == xxhash.xxh3_128_digest(header[:112])
        assert (cipher, source) == ((0, 0) if key is passphrase is None else (1, 1 if key else 2))
        self.aes = None
        if cipher:
            secret = key or hashlib.scrypt(passphrase, salt=salt, n=1 << log2_n, r=r, p=p, maxmem=1 << 27, dklen=32)
            made = hkdf(secret, salt, b"layover portable 1", 64)
            assert made[32:] == check
            self.aes = AESGCM(made[:32])
        self.data, self.at = data, HEADER
        head = self.part(1, head_bytes, hashlib.sha256(header).digest())
        journal_bytes, manifest_bytes, owner_bytes, id_bytes, zero = struct.unpack("<QIIII", head[:24])
        assert zero == 0 and len(head) == 24 + owner_bytes + id_bytes + manifest_bytes
        names = head[24:24 + owner_bytes + id_bytes]
        self.owner, self.id = names[:owner_bytes].decode(), names[owner_bytes:].decode()
        self.manifest = head[24 + owner_bytes + id_bytes:]
        listed = json.loads(self.manifest)["segments"] if self.manifest else []
        body = self.part(2, journal_bytes + sum(one["bytes"] for one in listed), hashlib.sha256(header + head).digest())
        assert self.at == len(data)
        self.journal, at = body[:journal_bytes], journal_bytes
        self.segments = []
        for one in listed:
            self.segments.append((one["file"], body[at:at + one["bytes"]]))
            at += one["bytes"]

    def part(self, number, length, binding):
        out, counter = b"", 0
        while len(out) < length:
            size = min(self.chunk, length - len(out))
            piece, trailer = self.data[self.at:self.at + size], self.data[self.at + size:self.at + size + TRAILER]
            nonce = struct.pack("<III", number, counter, int(len(out) + size == length))
            if self.aes:
                piece = self.aes.decrypt(nonce, piece + trailer, binding)
            else:
                assert trailer == xxhash.xxh3_128_digest(nonce + binding + piece)
            out, counter, self.at = out + piece, counter + 1, self.at + size + TRAILER
        return out
