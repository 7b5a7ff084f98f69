"""Our cmsgpack for fakeredis against the real one, value by value and refusal by refusal."""

from __future__ import annotations

import msgpack
import pytest
import redis

from echomq_plugin.testing import fake_redis

PACKED_BY_LUA = [
    "1, 2, 'x'",
    "{1, 2, 'x'}",
    "{a=1}",
    "{}",
    "{{'a', 'b'}, {}}",
    "true, false, nil",
    "0, 127, 128, 255, 256, 65535, 65536, 4294967295, 4294967296, 2^52",
    "-1, -32, -33, -128, -129, -32768, -32769, -2147483648, -2147483649",
    "''",
    "string.rep('a', 31), string.rep('a', 32), string.rep('a', 255), string.rep('a', 256), string.rep('a', 65536)",
]

READ_BY_LUA = {
    "small list": ["a", "jöb-☃", "", "x y\n"],
    "str8": ["t" * 36, "t" * 300],
    "str16": ["i" * 2048],
    "str32": ["i" * 70_000],
    "array16": [f"job-{number}" for number in range(16)],
    "array32": [str(number) for number in range(70_000)],
    "ints": [0, 127, 128, 256, 65536, 2**32, -1, -33, -129, -32769, -(2**31) - 1, 2**64 - 1, 2**63],
    "floats": [0.5, -2.25, 1.1, 1e300, 5e-324],
    "nested": [["a", ["b"]], {"k": "v"}],
    "booleans": [True, False],
}

REFUSED = {
    "bin": (msgpack.packb([b"x"], use_bin_type=True), "Bad data format"),
    "ext": (msgpack.packb([msgpack.ExtType(1, b"a")]), "Bad data format"),
    "never used": (b"\xc1", "Bad data format"),
    "cut short in text": (b"\xa5ab", "Missing bytes"),
    "cut short in a list": (b"\x92\xa1a", "Missing bytes"),
    "cut short in a length": (b"\xda\x01", "Missing bytes"),
}

TELL = """
local function tell(value)
  if type(value) ~= 'table' then return type(value) .. ' ' .. tostring(value) end
  local parts = {}
  for i = 1, #value do parts[i] = tell(value[i]) end
  if value.k then parts[#parts + 1] = 'k=' .. tell(value.k) end
  return '[' .. table.concat(parts, ', ') .. ']'
end
return tell(cmsgpack.unpack(ARGV[1]))
"""


@pytest.mark.parametrize("values", PACKED_BY_LUA)
def test_what_it_packs_are_the_bytes_that_redis_packs(client: redis.Redis, values: str) -> None:
    script = f"return cmsgpack.pack({values})"

    assert fake_redis().eval(script, 0) == client.eval(script, 0)


@pytest.mark.parametrize("values", READ_BY_LUA.values(), ids=READ_BY_LUA)
def test_what_it_reads_is_what_redis_reads(client: redis.Redis, values: list[object]) -> None:
    data = msgpack.packb(values)

    assert fake_redis().eval(TELL, 0, data) == client.eval(TELL, 0, data)


@pytest.mark.parametrize("packer", [{}, {"use_single_float": True}], ids=["double", "single"])
def test_fractions_come_back_as_they_went(packer: dict[str, bool]) -> None:
    values = [0.0, 0.5, -0.75, 1.5, 1e10, 0.15625]
    data = msgpack.packb(values, **packer)
    fake = fake_redis()

    assert fake.eval(TELL, 0, data) == fake.eval(
        TELL.replace("ARGV[1]", "cmsgpack.pack(cmsgpack.unpack(ARGV[1]))"), 0, data
    )


@pytest.mark.parametrize(("data", "message"), REFUSED.values(), ids=REFUSED)
def test_what_redis_refuses_it_refuses_in_the_same_words(client: redis.Redis, data: bytes, message: str) -> None:
    for server in (client, fake_redis()):
        with pytest.raises(redis.ResponseError, match=message):
            server.eval("return cmsgpack.unpack(ARGV[1])", 0, data)


@pytest.mark.parametrize(
    ("script", "message"),
    [("return cmsgpack.pack()", "needs input"), ("return cmsgpack.unpack(nil)", "string expected, got nil")],
)
def test_wrong_calls_are_refused_in_the_same_words(client: redis.Redis, script: str, message: str) -> None:
    for server in (client, fake_redis()):
        with pytest.raises(redis.ResponseError, match=message):
            server.eval(script, 0)


def test_a_nil_cuts_a_list_short_as_in_redis(client: redis.Redis) -> None:
    data = msgpack.packb(["a", None, "b"])
    script = "return #cmsgpack.unpack(ARGV[1])"

    assert fake_redis().eval(script, 0, data) == client.eval(script, 0, data) == 1


def test_a_large_int_loses_its_digits_as_in_redis(client: redis.Redis) -> None:
    data = msgpack.packb([10**14])
    script = "return cmsgpack.unpack(ARGV[1])[1] .. ''"

    assert fake_redis().eval(script, 0, data) == client.eval(script, 0, data) == b"1e+14"


def test_several_values_are_several_results(client: redis.Redis) -> None:
    data = msgpack.packb("a") + msgpack.packb("b")
    script = "return {cmsgpack.unpack(ARGV[1])}"

    assert fake_redis().eval(script, 0, data) == client.eval(script, 0, data) == [b"a", b"b"]
