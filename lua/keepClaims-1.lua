--[[
  Make claims last longer while the jobs are still being put back. A claim that ran out and is another's is left alone.

  KEYS[1]   held-claim (hash: job id -> "<claim token> <end in ms>")
  ARGV[1]   claim token (text)
  ARGV[2]   how long the claims last from now (ms)
  ARGV[3…]  job ids (text)
  Reply     list of the job ids whose claim is still ours
]]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kept = {}
for i = 3, #ARGV do
  local claim = redis.call('HGET', KEYS[1], ARGV[i])
  if claim and string.match(claim, '^(.*) %d+$') == ARGV[1] then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[1] .. ' ' .. string.format('%.0f', now + ARGV[2]))
    table.insert(kept, ARGV[i])
  end
end
return kept
