--[[
  Take jobs from an RQ queue, as RQ's own move into its intermediate list, and note which under a key of this call's own:
  called again, because the answer was lost on its way, it answers the same and takes no more.

  KEYS[1]  queue (list of job ids)
  KEYS[2]  intermediate list (list of job ids)
  KEYS[3]  what this call has taken (list of job ids)
  KEYS[4]  what an earlier call had taken, whose answer has arrived (list of job ids)
  ARGV[1]  how many jobs at most
  ARGV[2]  how long the note is kept (ms)
  Reply    the ids that this call has taken, now or before
]]
redis.call('DEL', KEYS[4])
local taken = redis.call('LRANGE', KEYS[3], 0, -1)
if #taken > 0 then
  return taken
end
for i = 1, tonumber(ARGV[1]) do
  local id = redis.call('LMOVE', KEYS[1], KEYS[2], 'LEFT', 'RIGHT')
  if not id then
    break
  end
  taken[i] = id
end
if #taken > 0 then
  redis.call('RPUSH', KEYS[3], unpack(taken))
  redis.call('PEXPIRE', KEYS[3], ARGV[2])
end
return taken
