--[[
  Try every command that the scripts use, on a key that nobody has, and leave nothing behind.

  KEYS[1]  a key without a value
  Reply    list of commands that this user may not call; empty when all are allowed
]]
local key = KEYS[1]
local refused = {}
local replica

local function try(name, ...)
  local reply = redis.pcall(name, ...)
  local error = type(reply) == 'table' and reply.err
  if not error then
    return
  end
  -- Servers say it in different words, and those of the scripts' own checks again in others.
  if string.find(error, 'NOPERM') or string.find(error, 'ACL') or string.find(error, "can't run this command") then
    table.insert(refused, string.lower(name))
  elseif string.find(error, 'READONLY') then
    replica = reply
  end
end

cmsgpack.unpack(cmsgpack.pack('a server without msgpack fails here'))
try('GET', key)
try('EXISTS', key)
try('PTTL', key)
try('TIME')
try('SET', key, '1', 'PX', 1000)
try('INCR', key)
try('DEL', key)
try('HSET', key, 'field', '1')
try('HGET', key, 'field')
try('HEXISTS', key, 'field')
try('PEXPIRE', key, 1000)
try('HDEL', key, 'field')
try('SREM', key, 'member')
try('LREM', key, 1, 'item')
try('DEL', key)
if replica then
  return replica
end
return refused
