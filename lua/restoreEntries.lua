--[[
  Write the entries of running jobs again after the server forgot both their locks and their entries (a failover that
  lost the last writes, a restart without data), so that the sweep brings the jobs back.
  A job that has a lock or an entry is left alone: somebody knows of it.

  KEYS[1]   held (hash: job id -> token)
  KEYS[2]   held-data (hash: job id -> opaque bytes)
  KEYS[3]   fence (counter)
  KEYS[4…]  locks of the jobs
  ARGV      for each job: job id (text), token (text), entry data (bytes), fence number of the job's start: its entry is
            written only if the server has forgotten that start; 0: whatever the counter says
  Reply     how many entries were written
]]
local written = 0
local fence = tonumber(redis.call('GET', KEYS[3]) or 0)
for i = 4, #KEYS do
  local at = (i - 4) * 4
  local jobId, number = ARGV[at + 1], tonumber(ARGV[at + 4])
  local forgotten = number == 0 or fence < number
  if forgotten and redis.call('EXISTS', KEYS[i]) == 0 and redis.call('HEXISTS', KEYS[1], jobId) == 0 then
    redis.call('HSET', KEYS[1], jobId, ARGV[at + 2])
    redis.call('HSET', KEYS[2], jobId, ARGV[at + 3])
    written = written + 1
  end
end
return written
