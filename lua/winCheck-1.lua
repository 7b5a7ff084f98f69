--[[
  Decide who makes the next pass of the sweep over a queue.

  KEYS[1]  held-check (string, under a PX TTL: its life is the time to the next pass)
  ARGV[1]  worker (text, for people who look)
  ARGV[2]  time between two passes (ms)
  Reply    0 when the pass is ours, else the ms until the next one
]]
local left = redis.call('PTTL', KEYS[1])
if left > 0 then
  return left
end
if left == -1 then
  redis.call('GET', KEYS[1])  -- an error unless it is text: a BullMQ job called "held-check" is not overwritten
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 0
