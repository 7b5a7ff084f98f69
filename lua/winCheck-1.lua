--[[
  Decide who makes the next pass of the sweep over a queue. Workers that serve the queue come first, because they can
  put its jobs back; the others get their turn when none of those has come for a while.

  KEYS[1]  held-check (string, under a PX TTL: its life is the time to the next pass, and the while after it)
  ARGV[1]  worker (text, for people who look)
  ARGV[2]  time between two passes (ms)
  ARGV[3]  how long a pass that is due is left to workers that serve the queue (ms)
  ARGV[4]  "1": this worker serves the queue, else "0"
  Reply    0 when the pass is ours, else the ms until we may win the next one
]]
local life = redis.call('PTTL', KEYS[1])
local left = life
if ARGV[4] == '1' then
  left = life - ARGV[3]
end
if left > 0 then
  return left
end
if life == -1 then
  redis.call('GET', KEYS[1])  -- an error unless it is text: a BullMQ job called "held-check" is not overwritten
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2] + ARGV[3])
return 0
