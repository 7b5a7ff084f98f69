--[[
  cmsgpack for fakeredis: what Redis' own Lua module of that name does with text, numbers, booleans, nil, lists and
  maps, refusals included. Redis reads neither the bin nor the ext types of msgpack, so this does not either.

  pack(value, …)  one msgpack text of all values, one after the other
  unpack(text)    all values in a msgpack text, as several results
]]
local cmsgpack = {}

local char, byte, floor = string.char, string.byte, math.floor

-- A number as `width` bytes, the highest first; a negative one as its two's complement.
local function bytes_of(number, width)
  local bytes = {}
  for i = width, 1, -1 do
    bytes[i] = char(number % 256)
    number = floor(number / 256)
  end
  return table.concat(bytes)
end

local function pack_whole(number)
  if number >= 0 then
    if number < 0x80 then return char(number) end
    if number < 0x100 then return '\204' .. bytes_of(number, 1) end
    if number < 0x10000 then return '\205' .. bytes_of(number, 2) end
    if number < 0x100000000 then return '\206' .. bytes_of(number, 4) end
    return '\207' .. bytes_of(number, 8)
  end
  if number >= -0x20 then return char(number + 256) end
  if number >= -0x80 then return '\208' .. bytes_of(number, 1) end
  if number >= -0x8000 then return '\209' .. bytes_of(number, 2) end
  if number >= -0x80000000 then return '\210' .. bytes_of(number, 4) end
  return '\211' .. bytes_of(number, 8)
end

-- IEEE 754, always in the wide form: every reader takes both.
local function pack_fraction(number)
  local sign = number < 0 and 0x80 or 0
  local high, low
  if number ~= number then
    high, low = 0x7FF80000, 0
  elseif number == math.huge or number == -math.huge then
    high, low = 0x7FF00000, 0
  else
    local mantissa, exponent = math.frexp(math.abs(number))
    local significand
    if exponent > -1022 then
      significand, exponent = (mantissa * 2 - 1) * 2 ^ 52, exponent + 1022
    else
      significand, exponent = math.ldexp(mantissa, exponent + 1074), 0
    end
    high, low = exponent * 0x100000 + floor(significand / 0x100000000), significand % 0x100000000
  end
  return '\203' .. char(sign + floor(high / 0x1000000)) .. bytes_of(high, 3) .. bytes_of(low, 4)
end

local function head(length, fixed, fixed_limit, marks)
  if length < fixed_limit then return char(fixed + length) end
  if marks[1] and length < 0x100 then return marks[1] .. bytes_of(length, 1) end
  if length < 0x10000 then return marks[2] .. bytes_of(length, 2) end
  return marks[3] .. bytes_of(length, 4)
end

local pack_value

local function pack_table(values)
  local parts, pairs_seen = {}, 0
  for _ in pairs(values) do pairs_seen = pairs_seen + 1 end
  if pairs_seen == #values then
    parts[1] = head(#values, 0x90, 16, {nil, '\220', '\221'})
    for i = 1, #values do parts[#parts + 1] = pack_value(values[i]) end
  else
    parts[1] = head(pairs_seen, 0x80, 16, {nil, '\222', '\223'})
    for key, value in pairs(values) do
      parts[#parts + 1] = pack_value(key)
      parts[#parts + 1] = pack_value(value)
    end
  end
  return table.concat(parts)
end

function pack_value(value)
  local kind = type(value)
  if kind == 'string' then return head(#value, 0xA0, 32, {'\217', '\218', '\219'}) .. value end
  if kind == 'table' then return pack_table(value) end
  if kind == 'boolean' then return value and '\195' or '\194' end
  if kind ~= 'number' then return '\192' end
  if floor(value) == value and value >= -2 ^ 63 and value < 2 ^ 63 then return pack_whole(value) end
  return pack_fraction(value)
end

function cmsgpack.pack(...)
  local count = select('#', ...)
  if count == 0 then error("bad argument #0 to 'pack' (MessagePack pack needs input.)", 2) end
  local parts = {}
  for i = 1, count do parts[i] = pack_value((select(i, ...))) end
  return table.concat(parts)
end

-- Reading: every function takes the text and where to read, and returns a value and where the next one begins.

local function need(text, at, width)
  if at + width - 1 > #text then error('Missing bytes in input.', 0) end
end

local function read_whole(text, at, width, signed)
  need(text, at, width)
  local number = byte(text, at)
  if signed and number >= 0x80 then number = number - 0x100 end
  for i = at + 1, at + width - 1 do number = number * 256 + byte(text, i) end
  return number, at + width
end

-- `bias` and `bits` (of the significand) say which of the two IEEE 754 forms it is.
local function read_fraction(text, at, width, bias, bits)
  need(text, at, width)
  local first, second = byte(text, at), byte(text, at + 1)
  local sign = first >= 0x80 and -1 or 1
  local shift = 2 ^ (bits % 8)
  local exponent = first % 0x80 * (256 / shift) + floor(second / shift)
  local significand = second % shift
  for i = at + 2, at + width - 1 do significand = significand * 256 + byte(text, i) end
  if exponent == 2 * bias + 1 then return significand == 0 and sign * math.huge or 0 / 0, at + width end
  if exponent == 0 then return sign * math.ldexp(significand, 1 - bias - bits), at + width end
  return sign * math.ldexp(significand + 2 ^ bits, exponent - bias - bits), at + width
end

local read_value

local function read_text(text, at, length)
  need(text, at, length)
  return text:sub(at, at + length - 1), at + length
end

local function read_list(text, at, length)
  local values = {}
  for i = 1, length do values[i], at = read_value(text, at) end
  return values, at
end

local function read_map(text, at, length)
  local values, key, value = {}, nil, nil
  for _ = 1, length do
    key, at = read_value(text, at)
    value, at = read_value(text, at)
    if key ~= nil then values[key] = value end
  end
  return values, at
end

-- By first byte: the function, and the arguments that follow the text and the place. Redis reads the largest unsigned
-- numbers as negative ones.
local fixed_width = {
  [0xCA] = {read_fraction, 4, 127, 23}, [0xCB] = {read_fraction, 8, 1023, 52},
  [0xCC] = {read_whole, 1}, [0xCD] = {read_whole, 2}, [0xCE] = {read_whole, 4}, [0xCF] = {read_whole, 8, true},
  [0xD0] = {read_whole, 1, true}, [0xD1] = {read_whole, 2, true},
  [0xD2] = {read_whole, 4, true}, [0xD3] = {read_whole, 8, true},
}

-- By first byte: the function, and the width of the length in front.
local with_length = {
  [0xD9] = {read_text, 1}, [0xDA] = {read_text, 2}, [0xDB] = {read_text, 4},
  [0xDC] = {read_list, 2}, [0xDD] = {read_list, 4}, [0xDE] = {read_map, 2}, [0xDF] = {read_map, 4},
}

function read_value(text, at)
  need(text, at, 1)
  local mark = byte(text, at)
  at = at + 1
  if mark < 0x80 then return mark, at end
  if mark < 0x90 then return read_map(text, at, mark - 0x80) end
  if mark < 0xA0 then return read_list(text, at, mark - 0x90) end
  if mark < 0xC0 then return read_text(text, at, mark - 0xA0) end
  if mark >= 0xE0 then return mark - 0x100, at end
  if mark == 0xC0 then return nil, at end
  if mark == 0xC2 or mark == 0xC3 then return mark == 0xC3, at end
  local form = fixed_width[mark]
  if form then return form[1](text, at, form[2], form[3], form[4]) end
  form = with_length[mark]
  if not form then error('Bad data format in input.', 0) end
  local length, after = read_whole(text, at, form[2])
  return form[1](text, after, length)
end

function cmsgpack.unpack(text)
  if type(text) == 'number' then text = tostring(text) end
  if type(text) ~= 'string' then
    error("bad argument #1 to 'unpack' (string expected, got " .. type(text) .. ')', 2)
  end
  local values, count, at = {}, 0, 1
  while at <= #text do
    count = count + 1
    values[count], at = read_value(text, at)
  end
  return unpack(values, 1, count)
end

return cmsgpack
