--[[
  Give claims back when nobody put the jobs back: the entries stay, and the counts are what they were before the claim.

  KEYS[1]   held-claim (hash: job id -> "<claim token> <end in ms>")
  KEYS[2]   stalled-count (hash: job id -> "<count> <dead token> <time in ms>")
  ARGV[1]   claim token (text)
  ARGV[2…]  for each job: job id (text), dead token (text)
  Reply     how many claims were given back
]]
local returned = 0
for i = 2, #ARGV, 2 do
  local jobId, token = ARGV[i], ARGV[i + 1]
  local claim = redis.call('HGET', KEYS[1], jobId)
  if claim and string.match(claim, '^(.*) %d+$') == ARGV[1] then
    -- The claim may have taken the place of this mark (acquireLock-6), and nobody can tell any more.
    redis.call('HSET', KEYS[1], jobId, 'relied on: ' .. token .. ' 0')
    local count, countedFor, at = string.match(redis.call('HGET', KEYS[2], jobId) or '', '^(%d+) (.-) (%d+)$')
    if countedFor == token then
      if tonumber(count) <= 1 then
        redis.call('HDEL', KEYS[2], jobId)
      else
        redis.call('HSET', KEYS[2], jobId, string.format('%.0f', count - 1) .. '  ' .. at)
      end
    end
    returned = returned + 1
  end
end
return returned
