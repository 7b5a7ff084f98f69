--[[
  Write the entries of running jobs again after the server forgot both their locks and their entries (a failover that
  lost the last writes, a restart without data), so that the sweep brings the jobs back.
  A job that has a lock or an entry is left alone: somebody knows of it.

  KEYS[1]   held (hash: job id -> token)
  KEYS[2]   held-data (hash: job id -> opaque bytes)
  KEYS[3…]  locks of the jobs
  ARGV      for each job: job id (text), token (text), entry data (bytes)
  Reply     how many entries were written
]]
local written = 0
for i = 3, #KEYS do
  local at = (i - 3) * 3
  local jobId = ARGV[at + 1]
  if redis.call('EXISTS', KEYS[i]) == 0 and redis.call('HEXISTS', KEYS[1], jobId) == 0 then
    redis.call('HSET', KEYS[1], jobId, ARGV[at + 2])
    redis.call('HSET', KEYS[2], jobId, ARGV[at + 3])
    written = written + 1
  end
end
return written
