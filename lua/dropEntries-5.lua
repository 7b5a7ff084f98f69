--[[
  End the recovery of jobs that are back in their queue, or given up. An entry goes only while it still bears the dead
  token and our claim: once the job has started again its entry is the new run's.

  KEYS[1]   held (hash: job id -> token)
  KEYS[2]   held-data (hash: job id -> opaque bytes)
  KEYS[3]   held-claim (hash: job id -> "<claim token> <end in ms>")
  KEYS[4]   held-seen (hash: job id -> token)
  KEYS[5]   stalled-count (hash: job id -> "<count> <dead token> <time in ms>")
  ARGV[1]   claim token (text)
  ARGV[2]   "1": the count goes too (the job is given up), else "0"
  ARGV[3…]  for each job: job id (text), dead token (text)
  Reply     how many entries went
]]
local dropped = 0
for i = 3, #ARGV, 2 do
  local jobId, token = ARGV[i], ARGV[i + 1]
  local claim = redis.call('HGET', KEYS[3], jobId)
  if claim and string.match(claim, '^(.*) %d+$') == ARGV[1] then
    redis.call('HDEL', KEYS[3], jobId)
    if redis.call('HGET', KEYS[1], jobId) == token then
      redis.call('HDEL', KEYS[1], jobId)
      redis.call('HDEL', KEYS[2], jobId)
      redis.call('HDEL', KEYS[4], jobId)
      if ARGV[2] == '1' then
        redis.call('HDEL', KEYS[5], jobId)
      end
      dropped = dropped + 1
    end
  end
end
return dropped
