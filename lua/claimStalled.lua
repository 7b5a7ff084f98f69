--[[
  Claim the jobs of dead workers before they are put back, and move their stalled counts, once for each dead token.
  A job's lock is never taken: the very delivery that is put back would be denied.

  KEYS[1]   held (hash: job id -> token)
  KEYS[2]   held-data (hash: job id -> opaque bytes)
  KEYS[3]   held-claim (hash: job id -> "<claim token> <end in ms>")
  KEYS[4]   stalled-count (hash: job id -> "<count> <dead token> <time in ms>")
  KEYS[5…]  locks of the jobs
  ARGV[1]   claim token (text without spaces)
  ARGV[2]   how long the claim lasts (ms)
  ARGV[3]   how long the counts are kept (ms)
  ARGV[4…]  for each job: job id (text), dead token (text)
  Reply     flat list of job id, entry data or "", count for each job claimed
]]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local claimed = {}
for i = 5, #KEYS do
  local jobId, token = ARGV[4 + (i - 5) * 2], ARGV[5 + (i - 5) * 2]
  local claim = redis.call('HGET', KEYS[3], jobId)
  -- What is not in our form is no claim and no count: it must not keep the other jobs from being brought back.
  local free = tonumber(string.match(claim or '', ' (%d+)$') or 0) <= now
  if free and redis.call('HGET', KEYS[1], jobId) == token and redis.call('EXISTS', KEYS[i]) == 0 then
    redis.call('HSET', KEYS[3], jobId, ARGV[1] .. ' ' .. string.format('%.0f', now + ARGV[2]))
    local count, countedFor = string.match(redis.call('HGET', KEYS[4], jobId) or '0  ', '^(%d+) (.-) ')
    if countedFor ~= token then
      count = (count or 0) + 1
      redis.call('HSET', KEYS[4], jobId, string.format('%.0f', count) .. ' ' .. token .. ' ' .. string.format('%.0f', now))
      redis.call('PEXPIRE', KEYS[4], ARGV[3])
    end
    table.insert(claimed, jobId)
    table.insert(claimed, redis.call('HGET', KEYS[2], jobId) or '')
    table.insert(claimed, tonumber(count))
  end
end
return claimed
