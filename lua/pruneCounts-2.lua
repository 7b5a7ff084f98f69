--[[
  Forget the stalled counts of jobs that have no entry and have not stalled for a long time.

  KEYS[1]   held (hash: job id -> token)
  KEYS[2]   stalled-count (hash: job id -> "<count> <dead token> <time in ms>")
  ARGV[1]   how long a count is kept (ms)
  ARGV[2…]  job ids (text)
  Reply     how many counts were forgotten
]]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local forgotten = 0
for i = 2, #ARGV do
  local count = redis.call('HGET', KEYS[2], ARGV[i])
  local at = count and tonumber(string.match(count, ' (%d+)$'))
  if count and (not at or at + ARGV[1] <= now) and redis.call('HEXISTS', KEYS[1], ARGV[i]) == 0 then
    redis.call('HDEL', KEYS[2], ARGV[i])
    forgotten = forgotten + 1
  end
end
return forgotten
