--[[
  One step of the sweep: of the given entries, return those whose lock is missing and was missing under the same token
  in the pass before; mark those that are missing for the first time. Only ids that are still held are marked, and only
  those that have an entry's data: a BullMQ job that is called "held" keeps its own fields under that very key.

  KEYS[1]   held (hash: job id -> token)
  KEYS[2]   held-data (hash: job id -> opaque bytes)
  KEYS[3]   held-seen (hash: job id -> token)
  KEYS[4…]  locks of the jobs
  ARGV      job ids (text), one for each lock
  Reply     flat list of job id, dead token, job id, dead token, …
]]
local dead = {}
for i = 4, #KEYS do
  local jobId = ARGV[i - 3]
  local token = redis.call('HGET', KEYS[1], jobId)
  if not token or redis.call('HEXISTS', KEYS[2], jobId) == 0 or redis.call('EXISTS', KEYS[i]) == 1 then
    redis.call('HDEL', KEYS[3], jobId)
  elseif redis.call('HGET', KEYS[3], jobId) == token then
    table.insert(dead, jobId)
    table.insert(dead, token)
  else
    redis.call('HSET', KEYS[3], jobId, token)
  end
end
return dead
